// Search on pages that are read from the disk, where browsers refuse workers: the worker's script runs in a frame.
// The theme looks for these names, the file's too.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = this.frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      frame.contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      this.loaded = new Promise((done, failed) => Object.assign(script, { onload: done, onerror: failed }))
      script.src = url
      frame.contentDocument.body.append(script)
    }

    async postMessage(data) {
      await this.loaded
      const { MessageEvent } = this.frame.contentWindow
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
