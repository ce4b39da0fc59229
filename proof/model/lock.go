package model

// Key is what the server holds of one lock. Times are in any unit.
type Key struct {
	Token int   // of the holder; 0 if the lock is free
	Left  int64 // until the key expires; Forever for a foreign key without TTL
}

// Forever is the TTL of a key that has none.
const Forever = -1

// Elapse lets time pass.
func (k *Key) Elapse(d int64) {
	if k.Token == 0 || k.Left == Forever {
		return
	}
	if k.Left -= d; k.Left <= 0 {
		*k = Key{}
	}
}

// Acquire acquires the lock, or finds that the token holds it already, and returns 0. If
// another token holds the lock, Acquire returns how much longer; it gives a key without
// TTL this one.
func (k *Key) Acquire(token int, ttl int64) (left int64) {
	switch {
	case k.Token == 0:
		*k = Key{token, ttl}
	case k.Token == token:
		k.Left = max(k.Left, ttl)
	case k.Left == Forever:
		k.Left = ttl
		return ttl
	default:
		return k.Left
	}
	return 0
}

// Extend gives a lock that the token holds at least this TTL.
func (k *Key) Extend(token int, ttl int64) bool {
	if k.Token != token {
		return false
	}
	k.Left = max(k.Left, ttl)
	return true
}

// Release releases a lock that the token holds.
func (k *Key) Release(token int) bool {
	if k.Token != token {
		return false
	}
	*k = Key{}
	return true
}

// Force releases a lock, whatever its token.
func (k *Key) Force() bool {
	held := k.Token != 0
	*k = Key{}
	return held
}
