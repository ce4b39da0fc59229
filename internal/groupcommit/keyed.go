package groupcommit

import (
	"sync"

	"github.com/sluice-go/sluice/internal/shrink"
)

// Keyed has a committer for each kind of calls: those of different keys are not merged. It
// keeps the committers that are in use, and one more. It is safe for concurrent use.
type Keyed[K comparable, A, R any] struct {
	create func(key K) *Committer[A, R]

	mu    sync.Mutex // guards what follows
	inUse map[K]*user[A, R]
	peak  int         // for shrink
	spare *user[A, R] // the last one that was not in use any more: most programs have one key
	key   K           // the spare's
}

// user is a committer, and how many callers use it.
type user[A, R any] struct {
	committer *Committer[A, R]
	callers   int
}

// NewKeyed returns a Keyed that makes committers by create.
func NewKeyed[K comparable, A, R any](create func(key K) *Committer[A, R]) *Keyed[K, A, R] {
	return &Keyed[K, A, R]{create: create, inUse: map[K]*user[A, R]{}}
}

// Acquire returns the committer for a key. The caller calls Release when its call is over.
func (k *Keyed[K, A, R]) Acquire(key K) *Committer[A, R] {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.inUse[key]
	switch {
	case u != nil:
	case k.spare != nil && k.key == key:
		u, k.spare = k.spare, nil
		k.inUse[key] = u
	default:
		u = &user[A, R]{committer: k.create(key)}
		k.inUse[key] = u
	}
	u.callers++
	return u.committer
}

// Release says that a caller of Acquire does not use the key's committer any more.
func (k *Keyed[K, A, R]) Release(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	u := k.inUse[key]
	if u.callers--; u.callers > 0 {
		return
	}
	k.inUse = shrink.Map(k.inUse, &k.peak)
	delete(k.inUse, key)
	k.spare, k.key = u, key
}
