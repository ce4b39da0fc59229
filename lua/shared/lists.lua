-- DEFINES wanted
-- USES page
-- For list: how it reads a list that is not the queue. What is scheduled is in the queue beside what is
-- leased; what is leased, dead or done has a list of its own, too.
local wanted = tonumber(ARGV[4])
if wanted == 3 then
  function count(score) return redis.call('ZCOUNT', KEYS[5], '-inf', score) end
  function entry(rank) return redis.call('ZRANGE', KEYS[5], rank, rank) end
  function range(from, to) return redis.call('ZRANGE', KEYS[5], from, to, 'WITHSCORES') end
elseif wanted == 4 then
  function count(score) return redis.call('ZCOUNT', KEYS[3], '-inf', score) end
  function entry(rank) return redis.call('ZRANGE', KEYS[3], rank, rank) end
  function range(from, to) return redis.call('ZRANGE', KEYS[3], from, to, 'WITHSCORES') end
elseif wanted == 5 then
  function count(score) return redis.call('ZCOUNT', KEYS[10], '-inf', score) end
  function entry(rank) return redis.call('ZRANGE', KEYS[10], rank, rank) end
  function range(from, to) return redis.call('ZRANGE', KEYS[10], from, to, 'WITHSCORES') end
end
