package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// lockKinds are the kinds of locks, each with the kind that takes its name after it was forced
// open.
var lockKinds = map[string]struct{ opts, other []sluice.LockOption }{
	"plain":          {nil, []sluice.LockOption{sluice.WithPermits(2)}},
	"fenced":         {[]sluice.LockOption{sluice.WithFencing()}, []sluice.LockOption{sluice.WithPermits(2), sluice.WithFencing()}},
	"permits":        {[]sluice.LockOption{sluice.WithPermits(2)}, nil},
	"fenced permits": {[]sluice.LockOption{sluice.WithPermits(2), sluice.WithFencing()}, []sluice.LockOption{sluice.WithFencing()}},
}

// overtaken is a Locker whose lock was forced open elsewhere, and taken as the other kind.
type overtaken struct {
	*testing.T
	locker         *sluice.Locker
	name           string
	opts           []sluice.LockOption // of the kind that the lock had
	force          func()
	elsewhere      *sluice.Locker
	lost, released atomic.Int32
	unanswered     bool // Close had no answer
}

func (o *overtaken) lock(opts ...sluice.LockOption) *sluice.Lock {
	o.Helper()
	k, err := o.locker.Lock(o.Context(), o.name, append(opts, o.opts...)...)
	require.NoError(o, err)
	return k
}

// TestLock_TakenAsTheOtherKindIsLost: the server's answer that the key is of another type proves
// that our token does not hold it, in each operation.
func TestLock_TakenAsTheOtherKindIsLost(t *testing.T) {
	paths := map[string]func(o *overtaken){
		"extend": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.ErrorIs(o, k.Extend(o.Context(), time.Minute), sluice.ErrNotHeld)
			require.False(o, k.Valid())
			require.ErrorIs(o, context.Cause(k.Context()), sluice.ErrLost)
		},
		"ttl": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := k.TTL(o.Context())
			require.ErrorIs(o, err, sluice.ErrNotHeld)
			require.False(o, k.Valid())
		},
		"unlock": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"renewal": func(o *overtaken) {
			k := o.lock(sluice.WithAutoRenew(), sluice.WithTTL(4*time.Second))
			o.force()
			<-k.Context().Done()
			require.ErrorIs(o, context.Cause(k.Context()), sluice.ErrLost)
			require.True(o, time.Now().Before(k.Deadline()), "at once, and not at its deadline")
		},
		"inspection for a waiter": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := o.locker.Lock(o.Context(), o.name, append(o.opts, sluice.WithRetryInterval(10*time.Millisecond))...)
			require.ErrorIs(o, err, sluice.ErrInvalid)
			require.NotErrorIs(o, k.Unlock(o.Context()), sluice.ErrCorrupt)
		},
		"unlock all": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.NoError(o, o.locker.UnlockAll(o.Context()))
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"close": func(o *overtaken) {
			k := o.lock()
			o.force()
			if err := o.locker.Close(); err != nil { // on a busy machine: no answer within its second
				require.ErrorIs(o, err, sluice.ErrUnknown)
				require.NotErrorIs(o, err, sluice.ErrCorrupt)
				o.unanswered = true
			}
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"set": func(o *overtaken) {
			s, err := o.locker.LockAll(o.Context(), []string{o.name}, o.opts...)
			require.NoError(o, err)
			o.force()
			require.ErrorIs(o, s.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"do": func(o *overtaken) {
			require.ErrorIs(o, o.locker.Do(o.Context(), o.name, func(context.Context) error { o.force(); return nil }, o.opts...), sluice.ErrLost)
		},
		"do all": func(o *overtaken) {
			require.ErrorIs(o, o.locker.DoAll(o.Context(), []string{o.name}, func(context.Context) error { o.force(); return nil }, o.opts...), sluice.ErrLost)
		},
		"adopt": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := o.elsewhere.Adopt(o.Context(), o.name, k.Token(), o.opts...)
			require.ErrorIs(o, err, sluice.ErrNotHeld)
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
	}
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for kind, kinds := range lockKinds {
			for path, run := range paths {
				t.Run(kind+", "+path, func(t *testing.T) {
					t.Parallel()
					o := &overtaken{T: t, name: redistest.Name(t), opts: kinds.opts, elsewhere: systest.NewLocker(t, s.Client(t))}
					o.locker = systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(sluice.LockHooks{
						LockLost:     func(sluice.LockLost) { o.lost.Add(1) },
						LockReleased: func(sluice.LockReleased) { o.released.Add(1) },
					}))
					var later *sluice.Lock
					o.force = func() {
						forced, err := o.elsewhere.ForceUnlock(t.Context(), o.name)
						require.NoError(t, err)
						require.True(t, forced)
						later, err = o.elsewhere.TryLock(t.Context(), o.name, kinds.other...)
						require.NoError(t, err)
					}
					if run(o); o.unanswered {
						return
					}
					require.Eventually(t, func() bool { return o.lost.Load() == 1 }, 5*time.Second, time.Millisecond, "the hook LockLost")
					require.Zero(t, o.released.Load(), "the hook LockReleased")
					require.True(t, later.Valid())
					require.NoError(t, later.Unlock(t.Context()), "the later holder's lock stays")
				})
			}
		}
	})
}

// TestLock_BothKindsOfOneNameAreNoCorruption: while callers use a name plainly and with permits,
// look at it, and force it open, each of them learns what is true: never that the key is not the
// library's.
func TestLock_BothKindsOfOneNameAreNoCorruption(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rounds := redistest.Name(t), 100*systest.Scale()
		var callers sync.WaitGroup
		for range 2 {
			l := systest.NewLocker(t, s.Client(t), sluice.WithTTL(time.Minute))
			for kind := range lockKinds {
				callers.Go(func() {
					repeat(t, rounds, func() error {
						ttl := time.Minute
						if rand.N(2) == 0 && s.Name != "miniredis" { // where keys expire in the middle of a script
							ttl = time.Duration(1+rand.N(3)) * time.Millisecond // it ends by itself, before any script of the others
						}
						return useOnce(t.Context(), l, name, ttl, lockKinds[kind].opts)
					})
				})
			}
			callers.Go(func() {
				repeat(t, rounds, func() error { _, err := l.Inspect(t.Context(), name); return err })
			})
			callers.Go(func() {
				repeat(t, rounds/5, func() error { _, err := l.ForceUnlock(t.Context(), name); return err })
			})
		}
		callers.Wait()
	})
}

// repeat calls f so many times, or until it fails.
func repeat(t *testing.T, rounds int, f func() error) {
	for i := range rounds {
		if err := f(); err != nil {
			t.Errorf("round %d: %v", i, err)
			return
		}
	}
}

// useOnce takes a lock if it can, extends it, and releases it or lets it end.
func useOnce(ctx context.Context, l *sluice.Locker, name string, ttl time.Duration, opts []sluice.LockOption) error {
	k, err := l.TryLock(ctx, name, append(opts, sluice.WithTTL(ttl))...)
	if errors.Is(err, sluice.ErrLocked) || errors.Is(err, sluice.ErrInvalid) || errors.Is(err, sluice.ErrLost) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, err := range []error{k.Extend(ctx, ttl), k.Unlock(ctx)} {
		if err != nil && !errors.Is(err, sluice.ErrNotHeld) && !errors.Is(err, sluice.ErrUnknown) { // that is one without an answer until it ended
			return err
		}
	}
	return nil
}

const random26 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" // as what is random in a token

// labels are valid, and try to be taken for something else.
var labels = []string{
	"host-1/4711", "a", ":", "a:b", "a:", strings.Repeat("x", 64), strings.Repeat("é", 32), "世界", "a b", " ",
	random26, "x:" + random26, ":" + random26, "%s", "%d:", `"\`, "{a}", "'; DEL", "-1", "0",
}

// TestLocker_InspectShowsTheOwner: the label of the holder, and of no other one.
func TestLocker_InspectShowsTheOwner(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		tokens := map[string]bool{}
		for _, label := range labels {
			for _, opts := range [][]sluice.LockOption{nil, {sluice.WithFencing()}, {sluice.WithAutoRenew()}} {
				k, err := l.Lock(ctx, name, append(opts, sluice.WithOwner(label))...)
				require.NoError(t, err)
				require.NoError(t, k.Extend(ctx, time.Minute))
				info, err := l.Inspect(ctx, name)
				require.NoError(t, err)
				require.True(t, info.Held)
				require.Equal(t, label, info.Owner)
				require.Greater(t, info.TTL, 50*time.Second)
				require.True(t, strings.HasPrefix(k.Token(), label+":"))
				require.False(t, tokens[k.Token()])
				tokens[k.Token()] = true
				ttl, err := k.TTL(ctx)
				require.NoError(t, err)
				require.Greater(t, ttl, 50*time.Second)
				require.NotContains(t, fmt.Sprintf("%v %+v %#v", k, k, k), k.Token())
				require.NoError(t, k.Unlock(ctx))
			}
		}
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, "", info.Owner, "a lock without a label")
		require.NoError(t, k.Unlock(ctx))
		info, err = l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Zero(t, info)
		k, err = l.Lock(ctx, name, sluice.WithOwner("a"))
		require.NoError(t, err)
		forced, err := l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, forced)
		require.False(t, k.Valid(), "the holder with a label was not found")
	})
}

// foreign are tokens of other libraries. No part of them is a label.
var foreign = []string{
	"", "1", "worker:1234", "worker-1", random26, ":" + random26, strings.Repeat("x", 65) + ":" + random26,
	"a\n:" + random26, "\x00:" + random26, "\xff:" + random26, "a\u202e:" + random26, "a\u200b:" + random26,
	"worker:" + strings.ToLower(random26), "worker:" + random26[1:], "worker:" + random26[1:] + "1", "worker:" + random26[1:] + "\n",
	"worker;" + random26, "550e8400-e29b-41d4-a716-446655440000:1", `{"secret":"` + random26 + `"}`,
	"worker:" + random26[1:] + " ", "worker:" + random26 + "\n", "worker:" + random26[13:] + ":" + random26[14:],
	strings.Repeat("secret", 100_000) + ":" + random26,
}

// replies keeps what the server has answered.
type replies struct {
	mu   sync.Mutex // guards what follows
	text strings.Builder
}

func (h *replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.note(cmd)
		return err
	}
}

func (h *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h.note(cmd)
		}
		return err
	}
}

func (h *replies) note(cmd redis.Cmder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if value, ok := cmd.(interface{ Val() any }); ok {
		fmt.Fprintf(&h.text, "%v\n", value.Val())
	}
}

// TestLocker_InspectShowsNoToken: what is random stays on the server, and so does all of a token
// that is not label:random.
func TestLocker_InspectShowsNoToken(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		var h replies
		rdb.AddHook(&h)
		for _, token := range foreign {
			require.NoError(t, rdb.Set(ctx, "Lock:"+name, token, time.Minute).Err())
			info, err := l.Inspect(ctx, name)
			require.NoError(t, err)
			require.True(t, info.Held)
			require.Greater(t, info.TTL, 50*time.Second)
			require.Empty(t, info.Owner, "of %.100q", token)
		}
		require.NotContains(t, h.text.String(), "secret", "the script returned what cannot be a label")
		require.NoError(t, rdb.Set(ctx, "Lock:"+name, "worker:1234", 0).Err())
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, sluice.LockInfo{Held: true, TTL: -1 * time.Millisecond, Holders: 1}, info)
		require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())

		k, err := l.Lock(ctx, name, sluice.WithOwner("host 1"))
		require.NoError(t, err)
		info, err = l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, "host 1", info.Owner)
		require.Contains(t, h.text.String(), "host 1", "the hook sees no replies")
		require.NotContains(t, h.text.String(), k.Token()[len(k.Token())-26:])
		require.NoError(t, k.Unlock(ctx))
	})
}

// TestLock_HandsOverToTheSameOwnerOnly: the token, which the next holder takes over, says who that
// is.
func TestLock_HandsOverToTheSameOwnerOnly(t *testing.T) {
	for _, c := range []struct{ first, second string }{{"a", "a"}, {"a", "b"}, {"a", ""}, {"", "a"}} {
		t.Run(fmt.Sprintf("%q to %q", c.first, c.second), func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, name := t.Context(), redistest.Name(t)
				var w witness
				lockAs := func(l *sluice.Locker, owner string) (*sluice.Lock, error) {
					if owner == "" {
						return l.Lock(ctx, name)
					}
					return l.Lock(ctx, name, sluice.WithOwner(owner))
				}
				l := systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(w.hooks()))
				systest.Warm(t, l, name)
				for try := 0; ; try++ { // a slow machine may miss the time for a hand-over
					first, err := lockAs(l, c.first)
					require.NoError(t, err)
					next := make(chan *sluice.Lock)
					go func() {
						k, err := lockAs(l, c.second)
						if err != nil {
							t.Error(err)
						}
						next <- k
					}()
					require.Eventually(t, func() bool { return systest.Waiting(l) > 0 }, 20*time.Second, time.Millisecond)
					require.NoError(t, first.Unlock(ctx))
					second := <-next
					info, err := l.Inspect(ctx, name)
					require.NoError(t, err)
					require.Equal(t, c.second, info.Owner)
					require.NoError(t, second.Unlock(ctx))
					handed := w.acquired[len(w.acquired)-1].HandedOver
					require.Equal(t, c.second, w.acquired[len(w.acquired)-1].Owner)
					require.True(t, !handed || c.first == c.second)
					if handed || c.first != c.second && try == 5 {
						return
					}
				}
			})
		})
	}
}
