-- The stock and the buyers of one item, changed in one step. A unit is either in the stock or has a buyer.
-- KEYS[1] stock: a counter. It is missing until the sale is open.
-- KEYS[2] buyers: a hash, user -> ID of the order.
-- Each operation is safe to repeat, also by a client that lost the reply.
local op, user, order = ARGV[1], ARGV[2], ARGV[3]

if op == 'take' then -- user, a new order ID -> what became of it, the order ID that counts
  local has = redis.call('HGET', KEYS[2], user)
  if has == order then return {'accepted', has} end -- the reply was lost
  if has then return {'have', has} end
  local stock = redis.call('GET', KEYS[1])
  if not stock then return {'closed', ''} end
  if tonumber(stock) <= 0 then return {'sold out', ''} end
  redis.call('DECR', KEYS[1])
  redis.call('HSET', KEYS[2], user, order)
  return {'accepted', order}
end

if op == 'drop' then -- user, order ID, units to put back -> whether the user had that order
  if redis.call('HGET', KEYS[2], user) ~= order then return 0 end -- done before, or the user has a later order
  redis.call('HDEL', KEYS[2], user)
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('INCRBY', KEYS[1], ARGV[4]) end
  return 1
end

-- open: total, then user and order ID of each order in the database. A user who has one keeps it.
for i = 3, #ARGV, 2 do redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[1], ARGV[2] - redis.call('HLEN', KEYS[2]))
return 1
