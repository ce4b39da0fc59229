package web

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// longestLook bounds a look at Redis that is made for all who watch.
	longestLook = 30 * time.Second
	// staleAfter is how long a viewer waits for a new look when there is an older one.
	staleAfter = time.Second
	// longestGood is how long a look that took long is good for at the most.
	longestGood = 2 * time.Minute
)

// shared is something at which several viewers look: however many they are, Redis is asked once in
// a while. A look is a goroutine of its own, which ends with the look, so that a viewer who leaves
// does not end it for the others; without viewers there is none.
type shared[T any] struct {
	every time.Duration // how long a look is good for; one that took long is for ten times as long as it took
	look  func(context.Context) (T, error)

	mu    sync.Mutex    // guards what follows
	under chan struct{} // closed when the look under way has ended; nil if none is
	value T
	err   error
	at    time.Time // when the value was new, and what it is made from; zero until there is one
	until time.Time // until when no other look is made
	again bool      // the look under way is of before a change
}

// get returns a look that is not too old. If a new one is not ready within a second, it returns the
// one before; if there is none, it waits until ctx ends.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	s.mu.Lock()
	if s.under == nil && !time.Now().Before(s.until) {
		s.under = make(chan struct{})
		go s.refresh(context.WithoutCancel(ctx))
	}
	under, known := s.under, !s.at.IsZero()
	s.mu.Unlock()
	if under != nil {
		var stale <-chan time.Time
		if known {
			stale = time.After(staleAfter)
		}
		select {
		case <-under:
		case <-stale:
		case <-ctx.Done():
			if !known {
				var none T
				return none, context.Cause(ctx)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if age, ok := ctx.Value(ageKey{}).(*age); ok && s.err == nil {
		age.note(s.at)
	}
	return s.value, s.err
}

// age is when the oldest look was new of those that were made with a context.
type age struct {
	mu     sync.Mutex // guards oldest
	oldest time.Time
}

type ageKey struct{}

// withAge returns a context that notes how old looks are, or one that does not, for nil.
func withAge(ctx context.Context, a *age) context.Context { return context.WithValue(ctx, ageKey{}, a) }

func (a *age) note(at time.Time) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.oldest.IsZero() || at.Before(a.oldest) {
		a.oldest = at
	}
}

// of returns when the oldest look was new; now, if none was made.
func (a *age) of(now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.oldest.IsZero() {
		return now
	}
	return a.oldest
}

// refresh looks, and tells those who wait. After an error the value is the one before.
func (s *shared[T]) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, longestLook)
	defer cancel()
	start := time.Now()
	var made age
	value, err := s.look(withAge(ctx, &made))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		s.value, s.at = value, made.of(time.Now())
	}
	if good := min(10*time.Since(start), longestGood); err == nil && good > s.every {
		s.until = start.Add(good)
	} else {
		s.until = start.Add(s.every)
	}
	if s.again {
		s.until, s.again = time.Time{}, false
	}
	close(s.under)
	s.under = nil
}

// expire has the next viewer look anew: something was changed.
func (s *shared[T]) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until, s.again = time.Time{}, s.under != nil
}

const (
	// mostLooks is how many looks of a kind are kept.
	mostLooks = 32
	// longestKey is how many bytes may say at what a look is that is kept.
	longestKey = 8 << 10
)

// looks has the looks of one kind by what they are at: a page of a list, say. The zero value is
// ready.
type looks[T any] struct {
	mu    sync.Mutex // guards what follows
	known map[lookKey]*shared[T]
}

// lookKey says at what a look is: of which queue, or none, and what of it.
type lookKey struct{ queue, what string }

// get returns a look that is not too old.
func (l *looks[T]) get(ctx context.Context, key lookKey, look func(context.Context) (T, error)) (T, error) {
	l.mu.Lock()
	s := l.known[key]
	if s == nil {
		s = &shared[T]{every: time.Second, look: look}
		if l.known == nil {
			l.known = map[lookKey]*shared[T]{}
		}
		for other := range l.known {
			if len(l.known) < mostLooks {
				break
			}
			delete(l.known, other)
		}
		if len(key.what) <= longestKey {
			l.known[key] = s
		}
	}
	l.mu.Unlock()
	return s.get(ctx)
}

// forget has the next viewer of what belongs to a queue look anew: something was changed.
func (l *looks[T]) forget(queue string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.known, func(key lookKey, _ *shared[T]) bool { return key.queue == queue })
}
