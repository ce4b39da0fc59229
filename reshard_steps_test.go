package sluice

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
)

// mover is a queue that is moved again and again, in steps, by movers that crash and whose commands come
// late, while clients of different ages use it.
type mover struct {
	*testing.T
	rdb     redis.UniversalClient
	rand    *rand.Rand
	clients []*Queue
	tasks   map[string]string // what is in the queue: IDs and payloads
	dead    map[string]bool   // which of them are dead letters
	mu      sync.Mutex        // guards late and steps while commands are sent
	late    [][]any           // commands of the movers, any of which may come again
	layouts map[int64]*layout // all that there were
	steps   map[string]int
}

func newMover(t *testing.T, s *redistest.Server, seed uint64) *mover {
	t.Logf("seed %d", seed)
	m := &mover{
		T: t, rdb: s.Client(t), rand: rand.New(rand.NewPCG(seed, 3)),
		tasks: map[string]string{}, dead: map[string]bool{}, layouts: map[int64]*layout{}, steps: map[string]int{},
	}
	client := s.Client(t)
	client.AddHook(recorder{m})
	name := redistest.Name(t)
	for range 3 {
		q, err := NewQueue(client, name)
		require.NoError(t, err)
		m.clients = append(m.clients, q)
		m.do("get", q, "", func(ctx context.Context) error { _, err := q.Cancel(ctx, "none"); return err })
	}
	return m
}

// recorder notes the commands of movers.
type recorder struct{ *mover }

func (recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for _, s := range []string{"reshard_begin", "reshard_take", "reshard_put", "reshard_end"} {
			if args := cmd.Args(); len(args) > 1 && args[1] == scripts[s].Request(nil).Args[1] {
				r.mu.Lock()
				r.late = append(r.late, slices.Clone(args))
				r.steps[s]++
				r.mu.Unlock()
			}
		}
		return next(ctx, cmd)
	}
}

func (r recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// do does something, and checks what must hold after each step.
func (m *mover) do(what string, q *Queue, id string, f func(ctx context.Context) error) {
	m.Helper()
	require.NoError(m, f(m.Context()), "%s %s", what, id)
	m.steps[what]++
	if l := q.layout(); m.layouts[l.epoch] == nil {
		m.layouts[l.epoch] = l
	}
	m.check()
}

// members returns the tasks in the sorted sets with each of these endings, of all shards of all layouts.
func (m *mover) members(endings ...string) [][]string {
	pipeline, reads := m.rdb.Pipeline(), make([][]*redis.StringSliceCmd, len(endings))
	seen := map[string]bool{}
	for _, l := range m.layouts {
		for _, s := range l.shards {
			key := s.keys[0].(string)
			if seen[key] {
				continue
			}
			seen[key] = true
			for i, ending := range endings {
				of := key
				if ending != "" {
					of = keyspace.Companion(key, ending)
				}
				reads[i] = append(reads[i], pipeline.ZRange(m.Context(), of, 0, -1))
			}
		}
	}
	_, _ = pipeline.Exec(m.Context()) // each command has its error
	all := make([][]string, len(endings))
	for i, of := range reads {
		for _, read := range of {
			if redis.HasErrorPrefix(read.Err(), "WRONGTYPE") {
				continue // a tombstone
			}
			require.NoError(m, read.Err())
			all[i] = append(all[i], read.Val()...)
		}
	}
	return all
}

// check: each task is somewhere, and in one place where it may be claimed; those that were removed are not.
func (m *mover) check() {
	m.Helper()
	members := m.members("", keyspace.MoveLeft, keyspace.MoveTransit, keyspace.Dead)
	open, left, transit, dead := m.once(members[0]), m.once(members[1]), members[2], m.once(members[3])
	moving := m.isMoving()
	for id := range m.tasks {
		if m.dead[id] {
			require.True(m, slices.Contains(dead, id) || moving && slices.Contains(transit, id), "the dead letter %s is lost", id)
			continue
		}
		require.True(m, slices.Contains(open, id) || slices.Contains(left, id) || moving && slices.Contains(transit, id), "%s is lost", id)
	}
	for _, id := range dead {
		require.True(m, m.dead[id], "%s is no dead letter", id)
	}
	for _, id := range open {
		require.Contains(m, m.tasks, id, "it was removed")
		require.NotContains(m, left, id, "in two places")
	}
	for _, id := range left {
		require.Contains(m, m.tasks, id, "it was removed")
	}
}

// isMoving reports whether the queue is being moved: what is in transit when it is not is lost.
func (m *mover) isMoving() bool {
	r, err := m.clients[0].readRecord(m.Context(), 0)
	require.NoError(m, err)
	return r.from > 0
}

// once requires that an ID is in one of the sorted sets.
func (m *mover) once(ids []string) []string {
	m.Helper()
	slices.Sort(ids)
	require.Equal(m, slices.Compact(slices.Clone(ids)), ids, "in two shards")
	return ids
}

func (m *mover) step() {
	q := m.clients[m.rand.IntN(len(m.clients))]
	id := fmt.Sprint("task", m.rand.IntN(30))
	switch m.rand.IntN(11) {
	case 10:
		m.bury(q, id)
	case 0, 1:
		m.do("enqueue", q, id, func(ctx context.Context) error {
			payload := fmt.Sprint(m.rand.Int())
			o, err := q.Enqueue(ctx, Task{ID: id, Payload: []byte(payload), Delay: time.Duration(m.rand.IntN(2)) * time.Hour})
			_, there := m.tasks[id]
			require.Equal(m, there && !m.dead[id], o == Updated, "%v", o)
			m.tasks[id] = payload
			delete(m.dead, id)
			return err
		})
	case 2:
		m.do("get", q, id, func(ctx context.Context) error {
			e, err := q.Get(ctx, id)
			if _, there := m.tasks[id]; !there {
				require.ErrorIs(m, err, ErrNotFound)
				return nil
			}
			require.Equal(m, m.tasks[id], string(e.Payload))
			return err
		})
	case 3:
		m.do("cancel", q, id, func(ctx context.Context) error {
			state, err := q.Cancel(ctx, id)
			_, there := m.tasks[id]
			require.Equal(m, there, state != Absent, "%v", state)
			require.Equal(m, m.dead[id], state == Dead, "%v", state)
			delete(m.tasks, id)
			delete(m.dead, id)
			return err
		})
	case 4, 5, 6:
		m.move(q)
	case 7:
		if len(m.late) > 0 {
			args := m.late[m.rand.IntN(len(m.late))]
			m.do("late", q, "", func(ctx context.Context) error {
				before, err := q.readRecord(ctx, 0)
				require.NoError(m, err)
				err = m.rdb.Do(ctx, args...).Err()
				after, failed := q.readRecord(ctx, 0)
				require.NoError(m, failed)
				require.Equal(m, before, after)
				if isTombstone(err) {
					return nil
				}
				return err
			})
		}
	case 9: // a consumer, who names no task and so brings none
		m.do("pop", q, "", func(ctx context.Context) error {
			l := q.layout()
			es, err := l.shards[m.rand.IntN(len(l.shards))].pop(ctx, 1+m.rand.IntN(3))
			for _, e := range es {
				require.Equal(m, m.tasks[e.ID], string(e.Payload), "%s was removed", e.ID)
				delete(m.tasks, e.ID)
			}
			if isTombstone(err) {
				return nil
			}
			return err
		})
	case 8:
		m.do("whole move", q, "", func(ctx context.Context) error {
			l, err := q.begin(ctx, 1+m.rand.IntN(4))
			if err != nil || l.from == nil || m.rand.IntN(3) > 0 {
				return m.unlessMoving(err)
			}
			if err = q.moveAll(ctx, l, nil); err == nil {
				err = q.end(ctx, l)
			}
			return err
		})
	}
}

// bury makes a task a dead letter, or brings a dead letter back.
func (m *mover) bury(q *Queue, id string) {
	m.do("bury", q, id, func(ctx context.Context) error {
		if _, there := m.tasks[id]; !there {
			return nil
		}
		if m.dead[id] && m.rand.IntN(2) == 0 {
			n, err := q.Revive(ctx, id)
			require.Equal(m, 1, n)
			delete(m.dead, id)
			return err
		}
		e, err := q.Get(ctx, id)
		require.NoError(m, err)
		require.Equal(m, m.dead[id], e.State == Dead)
		if !m.dead[id] {
			m.dead[id] = true
			err = q.Bury(ctx, e, "a reason")
		}
		return err
	})
}

// isTombstone reports whether a script has met a shard that was left.
func isTombstone(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// unlessMoving drops the error of a move that another one is under way.
func (m *mover) unlessMoving(err error) error {
	if err != nil {
		require.ErrorIs(m, err, ErrInvalid)
	}
	return nil
}

// move makes a part of the way from a former shard, and crashes.
func (m *mover) move(q *Queue) {
	m.do("part of a move", q, "", func(ctx context.Context) error {
		l := q.layout()
		if l.from == nil {
			return nil
		}
		way := move{q, l, m.rand.IntN(len(l.from.shards))}
		confirm := int64(0)
		for range 1 + m.rand.IntN(3) {
			t, err := way.take(ctx, confirm, 1+m.rand.IntN(4))
			if err != nil || t.number == 0 || m.rand.IntN(4) == 0 {
				return m.unlessOver(err)
			}
			if m.rand.IntN(3) == 0 { // one part only
				id, _ := t.tasks[0].id.(string)
				t.tasks = slices.DeleteFunc(t.tasks, func(task transitTask) bool { return l.shardOf(task.id.(string)) != l.shardOf(id) })
				_, err = way.put(ctx, t)
				return m.unlessOver(err)
			}
			if _, err = way.put(ctx, t); err != nil {
				return m.unlessOver(err)
			}
			confirm = t.number
		}
		return nil
	})
}

// unlessOver drops the error of a client that has slept through a move.
func (m *mover) unlessOver(err error) error {
	if err != nil && !isTombstone(err) {
		require.ErrorIs(m, err, errMoveOver)
	}
	return nil
}

// TestReshard_StepsMayBeRepeatedComeLateOrBeMadeByAnother: movers crash at any point, any command of
// theirs comes again at any time, and clients use the queue in between, each with the layout that it knows.
func TestReshard_StepsMayBeRepeatedComeLateOrBeMadeByAnother(t *testing.T) {
	repeatSteps(t, 4)
}

// repeatSteps has so many queues moved, on each backend.
func repeatSteps(t *testing.T, queues int) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		steps := map[string]int{}
		for range queues {
			m := newMover(t, s, rand.Uint64())
			for range 120 {
				m.step()
			}
			for name, n := range m.steps {
				steps[name] += n
			}
		}
		for _, name := range []string{"enqueue", "cancel", "pop", "late", "whole move", "part of a move", "reshard_put"} {
			require.Greater(t, steps[name], queues, name)
		}
	})
}
