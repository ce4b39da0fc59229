-- Takes tasks out of a shard that is left, for others to put into the shards of the new layout.
-- The first run closes the shard: its tasks get another key, and a string, the tombstone, takes
-- that of the main key, so that every other script fails on it. What was taken is in transit until
-- a run confirms that it was put; until then, every run returns it, except one that names tasks of which none is
-- in it or left. There is one batch at a time.
-- KEYS[5] the tasks that are left: zset   KEYS[6] those in transit: zset
-- KEYS[7] the move record: hash with the epoch of the new layout, the number of the last batch, its kind   KEYS[8] the leased tasks
-- ARGV[1] that epoch   ARGV[2] the number of a batch that was put, or 0   ARGV[3] how many to take, earliest
-- first; 0 for those named (one at least)   ARGV[4] the tombstone   ARGV[5] wake channel   then the IDs of tasks
-- RETURNS { the batch's number, or 0 if there is none, or none that has what was named; or -1 if the epoch is over;
--           1 if they are dead letters; how many tasks and letters are left besides; IDs; scores; payloads; state fields }
-- RETRY idempotent: a second run returns the batch that the first has taken.
local epoch, known = tonumber(ARGV[1]), tonumber(redis.call('HGET', KEYS[7], 'epoch') or '0')
if known > epoch then return { -1, 0, 0, {}, {}, {}, {} } end
redis.call('HDEL', KEYS[7], '') -- after this write a full server accepts the others
if known < epoch then close() end

local seq = redis.call('HGET', KEYS[7], 'seq') or '0'
if ARGV[2] == seq then confirm() end
if areGone() then return nothing() end
if redis.call('ZCARD', KEYS[6]) == 0 then
  for _, dead in ipairs({ '', 'dead' }) do
    local ids, scores = candidates(dead)
    if #ids > 0 then
      seq = string.format('%.0f', tonumber(seq) + 1)
      redis.call('HSET', KEYS[7], 'seq', seq, 'kind', dead)
      transfer(dead, ids, scores)
      break
    end
  end
end
return batch(seq)
