package virtualtime

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// orderWatch looks at a lock and its line before each command, and counts the processes that are
// overtaken: another client takes the lock, or a permit, which is not reserved for it, while they
// are in line.
type orderWatch struct {
	m *miniredis.Miniredis

	mu                  sync.Mutex // guards what follows
	over                bool       // processes give up now
	tokens, reserved    []string
	line                []string
	overtaken, outdated int // outdated: reservations that ended by themselves
}

// watchOrder has the server looked at from now on.
func watchOrder(t *testing.T, m *miniredis.Miniredis) *orderWatch {
	t.Helper()
	first, err := m.Dial() // which starts the server
	require.NoError(t, err)
	require.NoError(t, first.Close())
	w := &orderWatch{m: m}
	m.Server().SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		// Not before the commands of a script, during which the server answers none.
		if command == "EVALSHA" || command == "EVAL" || command == "SET" && strings.EqualFold(args[len(args)-1], "nx") {
			w.look()
		}
		return false
	})
	return w
}

func (w *orderWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	held := []string{}
	if value, err := w.m.Get(lockKey); err == nil {
		held = append(held, value)
	} else if members, err := w.m.ZMembers(lockKey); err == nil {
		held = slices.DeleteFunc(members, func(m string) bool { return m == "" })
	}
	line, _ := w.m.ZMembers(lineKey)
	var tokens, reserved []string
	for _, token := range held {
		if strings.HasPrefix(token, ">") {
			reserved = append(reserved, token)
		} else {
			tokens = append(tokens, token)
		}
	}
	taken := without(tokens, w.tokens)
	used := len(without(w.reserved, reserved))
	waiting := slices.ContainsFunc(line, func(member string) bool { return slices.Contains(w.line, member) })
	if len(taken) > used && waiting {
		w.overtaken++
	}
	if len(taken) < used {
		w.outdated += used - len(taken)
	}
	w.tokens, w.reserved, w.line = tokens, reserved, line
}

// without returns what is in all and not in some.
func without(all, some []string) (rest []string) {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// beside is a process that is so far from the server, and takes the lock in a loop beside others
// that are nearer.
type beside struct {
	kind          string
	trip, section time.Duration
	others        int
}

var lockKinds = map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}, "permits": {sluice.WithPermits(3)}}

// TestLine_OvertakesNoProcess: whatever its distance to the server, the sections, and how many
// others take the lock in a loop beside it. The file line_order_long_test.go has all the
// combinations.
func TestLine_OvertakesNoProcess(t *testing.T) {
	for _, b := range []beside{
		{"plain", 200 * time.Microsecond, time.Millisecond, 20},
		{"plain", 4 * time.Millisecond, 50 * time.Millisecond, 1},
		{"plain", 20 * time.Millisecond, 50 * time.Millisecond, 1},
		{"plain", 20 * time.Millisecond, 0, 4},
		{"plain", 200 * time.Millisecond, time.Millisecond, 20},
		{"fenced", 20 * time.Millisecond, 50 * time.Millisecond, 4},
		{"permits", 4 * time.Millisecond, time.Millisecond, 20},
		{"permits", 200 * time.Millisecond, 50 * time.Millisecond, 4},
	} {
		b.overtakesNone(t)
	}
}

func (b beside) overtakesNone(t *testing.T) {
	t.Helper()
	t.Run(fmt.Sprintf("%s/%v away/sections of %v/%d others", b.kind, b.trip, b.section, b.others), func(t *testing.T) {
		systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
			f, end := newFleet(t, m, 1+b.others, append(lockKinds[b.kind], sluice.WithTTL(time.Minute))...)
			defer end()
			f.moveAway(0, b.trip)
			for i := range b.others {
				f.moveAway(1+i, max(100*time.Microsecond, b.trip/40))
			}
			w := watchOrder(t, m)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.work(ctx, f, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.over = true
				cancel()
			})
			require.Zero(t, w.overtaken, "overtaken")
			require.Zero(t, w.outdated, "reservations that ended")
		})
	})
}

// work has all processes take the lock in a loop, until the first has had it four times, and calls
// over then.
func (b beside) work(ctx context.Context, f *fleet, over func()) {
	f.Helper()
	var all sync.WaitGroup
	for i, l := range f.lockers {
		all.Go(func() {
			for turns := 0; ctx.Err() == nil; turns++ {
				k, err := l.Lock(ctx, "a")
				if err != nil {
					return
				}
				if i == 0 && turns == 3 {
					over()
				}
				time.Sleep(b.section)
				require.NoError(f, k.Unlock(context.Background()))
			}
		})
	}
	all.Wait()
}
