/*
 * A page of records of several partitions, in the order of time. The server reads the partitions of a topic in the order
 * of offsets, so that of an uneven topic the fullest partition would come first and alone; here each is asked for a
 * page, and what is newest of all is taken.
 */

import { ask, PATHS } from "./console_requests.js";

/** Records in a page, and bytes that are loaded for one. */
export const PAGE = 50;
export const PAGE_BYTES = 2 ** 20;

/** More partitions than this are read together, in the order of offsets. */
export const MERGED_MAX = 8;

/** Read a page: `records`, whether it `isLast`, and `parts`, which are what the next page asks for. */
export async function readPage(topic, { parts, headers, isForward }, signal) {
  const answers = await Promise.all(parts.map((query) => ask(PATHS.records, { names: { topic }, query, headers, signal })));
  const sources = answers.map(({ data }) => ({ data, records: data.records, taken: 0 }));
  const records = [];
  while (records.length < PAGE && sources.every((one) => hasMore(one) || one.data.exhausted)) {
    const next = first(sources.filter(hasMore), isForward);
    if (next === undefined) break;
    records.push(next.records[next.taken]);
    next.taken += 1;
  }
  return {
    records,
    isLast: sources.every((one) => !hasMore(one) && one.data.exhausted),
    parts: parts.map((query, at) => onward(query, sources[at], isForward)),
  };
}

function hasMore(source) {
  return source.taken < source.records.length;
}

function first(sources, isForward) {
  const time = (one) => Number(one.records[one.taken].time_us) * (isForward ? 1 : -1);
  return sources.reduce((best, one) => (best === undefined || time(one) < time(best) ? one : best), undefined);
}

function onward(query, source, isForward) {
  const name = isForward ? "start" : "end";
  if (!hasMore(source)) return { ...query, [name]: source.data.position };
  if (!source.taken) return query;
  const last = Number(source.records[source.taken - 1].offset);
  return { ...query, [name]: isForward ? last + 1 : last };
}
