-- Gives a shard of the new layout the pause of those that are left, once: what comes late must not pause a queue again that was
-- resumed. Then notes that this is done, and takes the pause back if those that are left were resumed meanwhile.
-- KEYS[1] the shard's main key   KEYS[6] its pause   KEYS[7] its move record: hash, see reshard_put.lua; the field "pause" says how
-- far this has come
-- ARGV[1] wake channel   ARGV[2] for how long, in ms, or 0 for no end; then 'keep', or 'clear' if there is none to be carried
-- RETURNS 1, or 0 if that had been done
-- RETRY idempotent: a second run finds the field.
redis.call('ZCARD', KEYS[1]) -- fails if this shard was left meanwhile
local was, ends = redis.call('HGET', KEYS[7], 'pause'), ARGV[2] == 'keep' or ARGV[2] == 'clear'
if was == 'done' or was and not ends then return 0 end
if not ends then need('SET', KEYS[6]) end
redis.call('HDEL', KEYS[7], '') -- after this write a full server accepts the others
redis.call('HSET', KEYS[7], 'pause', ends and 'done' or 'carried')
if ends then
  if was and ARGV[2] == 'clear' and redis.call('DEL', KEYS[6]) == 1 then
    local off = outlook(ARGV[1])
    if off <= 3600000000 then announce(ARGV[1], math.max(off, 0), waiters(ARGV[1])) end
  end
elseif redis.call('EXISTS', KEYS[6]) == 1 then
  return 1 -- the queue has been paused anew
elseif ARGV[2] == '0' then
  redis.call('SET', KEYS[6], '1')
else
  redis.call('SET', KEYS[6], '1', 'PX', ARGV[2])
end
return 1
