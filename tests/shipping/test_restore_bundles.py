"""A log with a cipher of the user's own comes back from a store that has its segments in bundles."""

from __future__ import annotations

import shutil

import pytest

import holdfast
from holdfast import Corrupt, Settings
from holdfast.crypto.vault import Vault
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.port import Body
from tests.bundle_data import File, Forgery, Masked
from tests.rewriting import Compactor
from tests.segments.planting import TEN, fill, offsets

pytestmark = pytest.mark.store


def test_a_log_comes_back_from_its_bundles_and_from_no_other(open_quiet, root, tmp_path):
    """Nothing but the bundle is left of it. One in which a block was forged, with all hashes right, is refused."""
    log = open_quiet(segments=TEN, cipher=Masked())
    fill(log, "orders", 4)
    log.ship(20)
    log.close()
    shutil.rmtree(log.path)
    compactor = Compactor(root.store)
    signer = Vault(bytes.fromhex(compactor.log), None, Masked()).signer
    compactor.store = RootStore(root.store, RootTrust(signer))
    compactor.rewrite((0, 4), remove=True)
    (key,) = (info.key for info in root.store.list(layout.segments_folder("orders", 0) + "/"))
    true = root.store.get(key)

    (tmp_path / "true").write_bytes(true)
    forgery = Forgery(File(tmp_path / "true", None, None))
    forgery.rows[1]["block"] = forgery.rows[1]["block"][:-1] + b"?"
    forged = forgery.write(forgery.parts, forgery.rows)
    root.store.delete([key])
    root.store.create(key, Body.of(forged.path.read_bytes()))
    with pytest.raises(Corrupt):
        holdfast.restore(root.url, tmp_path / "back", settings=Settings.from_mapping({}), cipher=Masked())

    root.store.delete([key])
    root.store.create(key, Body.of(true))
    holdfast.restore(root.url, tmp_path / "back", settings=Settings.from_mapping({}), cipher=Masked())
    assert offsets(open_quiet("back", segments=TEN, cipher=Masked()).topic("orders")) == list(range(40))
