package model

// Key is what the server holds of one lock. Times are in any unit.
type Key struct {
	Token int   // of whoever holds it; 0 if nobody does
	Left  int64 // how long it will live; Forever for a foreign key without TTL
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

// Acquire takes the lock: 0. Or it says how long somebody else may keep it. A token
// that holds it finds itself there. A key that has no TTL is given one.
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

// Extend gives a lock that the token holds at least that TTL.
func (k *Key) Extend(token int, ttl int64) bool {
	if k.Token != token {
		return false
	}
	k.Left = max(k.Left, ttl)
	return true
}

// Release frees a lock that the token holds.
func (k *Key) Release(token int) bool {
	if k.Token != token {
		return false
	}
	*k = Key{}
	return true
}

// Force frees a lock whoever holds it.
func (k *Key) Force() bool {
	held := k.Token != 0
	*k = Key{}
	return held
}
