package model_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice/proof/model"
)

// lockResults are the results that a long run must have seen.
const lockResults = `adopt: done; adopt: held twice; adopt: not held; baskets; detach: done; detach: not held; extend: done; extend: not held; force unlock: held; force unlock: not held; force unlock: the locker's own; foreign key; key lost;
context ended; inspect: held; inspect: not held; inspect: without TTL; lock: ended; lock: locked; lock: max wait; lock: acquired; handed over;
lock all: acquired; lock all: locked; lock all: one was lost;
released to the next; try lock: locked; try lock: acquired; try lock: acquired, fenced; ttl: held; ttl: not held; unlock: done;
waiting: behind their own holder; waiting: one process; waiting: several processes;
unlock: not held; unlock: closed; unlock all; foreign key given a TTL`

// virtualResults are those that need time to pass, besides lockResults.
const virtualResults = `; advance; detach: after the deadline; inspected; lock: acquired after its holder's TTL; unlock: done after the deadline; extend: after the deadline`

// TestLockMachine_VirtualTime compares deadlines to the nanosecond.
func TestLockMachine_VirtualTime(t *testing.T) {
	inVirtualTime(t, lockResults+virtualResults, runLockMachine)
}

func TestLockMachine_RealServer(t *testing.T) { onRealServer(t, lockResults, runLockMachine) }

func runLockMachine(t *rapid.T, s *setting, name string) {
	t.Repeat(newLockMachine(t, s, name).actions())
}

// list splits a list at its semicolons.
func list(results string) (out []string) {
	for what := range strings.SplitSeq(results, ";") {
		out = append(out, strings.TrimSpace(what))
	}
	return out
}

const (
	retryInterval = 200 * time.Millisecond
	keyMargin     = 12 * time.Millisecond // how much longer than its TTL a key lives
	foreign       = -1                    // the token of another library's client
)

// lockMachine performs an operation on locks and on the model, and compares the results.
type lockMachine struct {
	*setting
	names   [2]*lockName
	handles []*handle // all so far
	at      time.Time // the time of the model
}

// lockName is a name, with what the server holds and what each process knows of it.
type lockName struct {
	name    string
	key     model.Key
	holders [3]*handle // the holder that each process knows of
	fence   int64      // the highest so far
	tokens  map[int]string
}

func newLockMachine(t *rapid.T, s *setting, name string) *lockMachine {
	m := &lockMachine{setting: s, at: time.Now()}
	for i, suffix := range []string{".a", ".b"} {
		m.names[i] = &lockName{name: name + suffix, tokens: map[int]string{foreign: "php"}}
		require.NoError(t, s.rdb.Del(context.Background(), "Lock:"+name+suffix).Err())
	}
	return m
}

func (m *lockMachine) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"TryLock": m.tryLock, "TryLock2": m.tryLock, "Lock": m.lock, "LockEnded": m.lockEnded, "HandOver": m.handOver, "Waiting": m.waiting,
		"Unlock": m.unlock, "Extend": m.extend, "TTL": m.ttl, "Inspect": m.inspect,
		"Detach": m.detach, "Adopt": m.adopt, "LockAll": m.lockAll, "Baskets": m.baskets,
		"ForceUnlock": m.forceUnlock, "UnlockAll": m.unlockAll, "Foreign": m.foreign, "Lose": m.lose,
	}
	if m.virtual {
		actions["Advance"] = m.advance
	}
	return actions
}

// elapse lets the time of the model pass until now.
func (m *lockMachine) elapse() {
	now := time.Now()
	for _, n := range m.names {
		n.key.Elapse(int64(now.Sub(m.at)))
	}
	m.at = now
	m.learn()
}

// learn notes which holders have learnt that they lost their locks, by an inspection.
func (m *lockMachine) learn() {
	if m.virtual {
		synctest.Wait()
	}
	for _, h := range m.handles {
		if h.wanted && h.valid() && h.of.key.Token != h.token && !h.lock.Valid() {
			m.over(h)
			m.counts.add("inspected")
		}
	}
}

// end compares the keys and every handle with the model.
func (m *lockMachine) end(t *rapid.T) {
	if m.virtual {
		synctest.Wait() // alarms
	}
	m.elapse()
	for _, n := range m.names {
		ctx := context.Background()
		token, err := m.rdb.Get(ctx, "Lock:"+n.name).Result()
		if n.key.Token == 0 {
			require.ErrorIs(t, err, redis.Nil, "a key that should not be there")
			continue
		}
		require.NoError(t, err, "no key")
		require.Equal(t, n.tokens[n.key.Token], token)
		m.sameTTL(t, n.key.Left, m.rdb.PTTL(ctx, "Lock:"+n.name).Val())
	}
	for _, h := range m.handles {
		h.same(t)
	}
}

func (m *lockMachine) sameTTL(t *rapid.T, want int64, is time.Duration) {
	if want == model.Forever {
		require.Negative(t, is)
		return
	}
	require.InDelta(t, want, is, float64(m.tolerance))
}

func (m *lockMachine) drawName(t *rapid.T) *lockName {
	return m.names[rapid.IntRange(0, 1).Draw(t, "name")]
}

// drawHandle draws one of the last handles.
func (m *lockMachine) drawHandle(t *rapid.T) *handle {
	if len(m.handles) == 0 {
		t.Skip("no handle yet")
	}
	return m.handles[len(m.handles)-1-rapid.IntRange(0, min(len(m.handles), 5)-1).Draw(t, "handle")]
}

// holder returns the handle that the process knows as the holder, if it is valid.
func (m *lockMachine) holder(n *lockName, locker int) *handle {
	if h := n.holders[locker]; h != nil && h.valid() {
		return h
	}
	return nil
}
