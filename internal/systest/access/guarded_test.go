package access

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// guarded is a server with a user of it whose rights are what the documented rule
// says, less what a test takes away. Everything is there for an operation to work on:
// a lock of each kind, and tasks in each state that a task can be in.
type guarded struct {
	*testing.T
	rule     []string
	admin    redis.UniversalClient
	user     redis.UniversalClient
	queue    *sluice.Queue
	recalls  *sluice.Queue // the same queue, with a retention
	paused   *sluice.Queue
	shop     *sluice.Queue             // its tasks hold units, or are in groups
	limited  *sluice.Queue             // it is at its limit by one task less
	now      float64                   // Unix seconds, when the tasks were put in
	lockers  map[string]*sluice.Locker // by the kind of their locks: "", "fenced" or "permit"
	locks    map[string]*sluice.Lock   // likewise; of the permits, the other one is free
	set      *sluice.LockSet
	oneOfTwo *sluice.Lock // a permit; the other one of "two" is held
}

// newGuarded starts a server with the parts of the documented rule.
func newGuarded(t *testing.T, parts ...int) *guarded {
	t.Helper()
	redistest.NotShort(t)
	s := redistest.Start(t, redistest.OpenChannels...)
	g := &guarded{T: t, admin: s.Client(t)}
	for _, part := range parts {
		g.rule = append(g.rule, redistest.Rules(t)[part]...)
	}
	g.grant("")
	g.user = systest.Dial(t, redis.Options{Addr: s.Addr, Username: "sluice", Password: "CHANGE-ME"})
	return g
}

// grant gives the user the rule without one word of it.
func (g *guarded) grant(less string) {
	g.Helper()
	args := []any{"ACL", "SETUSER", "sluice"}
	for _, word := range g.rule {
		if word != less {
			args = append(args, word)
		}
	}
	require.NoError(g, g.admin.Do(g.Context(), args...).Err())
}

// task is the entry that stands for a task of prepare.
func (g *guarded) task(id string) sluice.Entry {
	score, err := g.admin.ZScore(g.Context(), "Queue:q", id).Result()
	require.True(g, err == nil || errors.Is(err, redis.Nil), err) // a dead letter has none
	return sluice.Entry{ID: id, Score: score, Attempt: 1, Payload: []byte("p")}
}

// stock puts tasks that hold units, or are in groups, into the queue "shop".
func (g *guarded) stock(pipe redis.Pipeliner) {
	ctx := g.Context()
	mine, soon := fmt.Sprintf("1:%.0f:", g.now+900), fmt.Sprintf("%.0f", g.now+100)
	pipe.ZAdd(ctx, "Queue:shop", redis.Z{Score: g.now - 1, Member: "due"}, redis.Z{Score: g.now + 50, Member: "plain"})
	for _, id := range []string{"taken", "a1", "b1"} {
		pipe.ZAdd(ctx, "Queue:shop", redis.Z{Score: g.now + 900, Member: id})
		pipe.ZAdd(ctx, "{Queue:shop}:leased", redis.Z{Score: g.now + 900, Member: id})
	}
	pipe.ZAdd(ctx, "{Queue:shop}:dead", redis.Z{Score: g.now, Member: "letter"})
	pipe.HSet(ctx, "{Queue:shop}:state", "due", "*1,5:phone@1:c::", "taken", "*2,5:phone"+mine, "letter", "*3,5:phone5:dead:why",
		"a1", "@1:a"+mine, "a2", "@1:a::"+soon, "b1", "@1:b"+mine+"5000000000", "b2", "@1:b::"+soon, "c2", "@1:c::"+soon)
	pipe.HSet(ctx, "{Queue:shop}:stock", "total:phone", 20, "held:phone", 6)
	for _, member := range []string{"!a\x00a1", "!b\x00b1", "!c\x00due", "~a\x00%sa2", "~b\x00%sb2", "~c\x00%sc2"} {
		member = strings.ReplaceAll(member, "%s", fmt.Sprintf("%016.0f", (g.now+100)*1e6))
		pipe.ZAdd(ctx, "{Queue:shop}:groups", redis.Z{Member: member})
	}
}

// prepare empties the server, and puts there what operations on locks work on, or those on queues.
func (g *guarded) prepare(locks bool) {
	g.Helper()
	ctx := g.Context()
	g.grant("")
	require.NoError(g, g.admin.FlushAll(ctx).Err())
	require.NoError(g, g.admin.ScriptFlush(ctx).Err())
	if locks {
		g.prepareLocks()
		return
	}
	var err error
	g.recalls, err = sluice.NewQueue(g.user, "q", sluice.WithRetention(time.Hour))
	require.NoError(g, err)
	g.queue, err = sluice.NewQueue(g.user, "q")
	require.NoError(g, err)
	g.paused, err = sluice.NewQueue(g.user, "paused")
	require.NoError(g, err)
	require.NoError(g, g.paused.Pause(ctx, time.Hour))
	g.limited, err = sluice.NewQueue(g.user, "limited")
	require.NoError(g, err)
	require.NoError(g, g.limited.SetLimits(ctx, sluice.Limits{Running: 2, Rate: 1000, Burst: 10}))
	g.shop, err = sluice.NewQueue(g.user, "shop")
	require.NoError(g, err)
	now, err := g.admin.Time(ctx).Result()
	require.NoError(g, err)
	g.now = float64(now.Unix())
	pipe := g.admin.Pipeline()
	for _, task := range []struct {
		id      string
		score   float64
		field   string // of its state; %s is the score
		payload string
	}{
		{"plain", -10, "", ""},
		{"paid", -9, "", "p"},
		{"tried", -8, "2:%s:", "p"},
		{"lapsed", -7, "3:%s:5000000000", "p"}, // a version waits for much later
		{"lapsed, no payload", -6, "3:%s:5000000000", ""},
		{"spent", -5, "25:%s:", "p"},
		{"odd", -4, "not ours", ""},
		{"back", -3, "4:dead:why", "p"}, // a dead letter that a foreign producer has put back
		{"mine", 900, "1:%s:", "p"},
		{"mine, deferred", 901, "1:%s:5000000000", "p"},
		{"mine, deferred, no payload", 902, "1:%s:5000000000", ""},
		{"mine, odd", 903, "not ours", ""},
		{"mine, back", 904, "4:dead:why", "p"},
		{"later", 1000, "", "p"},
	} {
		score := fmt.Sprintf("%.0f", g.now+task.score)
		pipe.ZAdd(ctx, "Queue:q", redis.Z{Score: g.now + task.score, Member: task.id})
		if task.field != "" {
			pipe.HSet(ctx, "{Queue:q}:state", task.id, strings.ReplaceAll(task.field, "%s", score))
		}
		if strings.HasPrefix(task.id, "mine") && strings.Contains(task.field, "%s") {
			pipe.ZAdd(ctx, "{Queue:q}:leased", redis.Z{Score: g.now + task.score, Member: task.id})
		}
		if task.payload != "" {
			pipe.HSet(ctx, "{Queue:q}:tasks", task.id, task.payload)
		}
	}
	g.stock(pipe)
	pipe.ZAdd(ctx, "Queue:limited", redis.Z{Score: g.now - 2, Member: "plain"}, redis.Z{Score: g.now - 1, Member: "next"}, redis.Z{Score: g.now + 900, Member: "mine"})
	pipe.ZAdd(ctx, "{Queue:limited}:leased", redis.Z{Score: g.now + 900, Member: "mine"})
	pipe.HSet(ctx, "{Queue:limited}:state", "mine", fmt.Sprintf("1:%.0f:", g.now+900))
	pipe.HSet(ctx, "{Queue:limited}:tasks", "plain", "p", "mine", "p")
	for _, id := range []string{"dead", "dead, no payload", "back", "mine, back", ""} {
		pipe.ZAdd(ctx, "{Queue:q}:dead", redis.Z{Score: g.now, Member: id})
	}
	pipe.HSet(ctx, "{Queue:q}:state", "dead", "5:dead:why", "dead, no payload", "5:dead:why")
	pipe.HSet(ctx, "{Queue:q}:tasks", "dead", "p")
	_, err = pipe.Exec(ctx)
	require.NoError(g, err)
}

func (g *guarded) prepareLocks() {
	g.Helper()
	var err error
	ctx := g.Context()
	g.lockers, g.locks = map[string]*sluice.Locker{}, map[string]*sluice.Lock{}
	for kind, of := range map[string]struct {
		name    string
		options []sluice.LockOption
	}{"": {"held", nil}, "fenced": {"fenced", []sluice.LockOption{sluice.WithFencing()}}, "permit": {"permits", []sluice.LockOption{sluice.WithPermits(2)}}} {
		g.lockers[kind] = systest.NewLocker(g.T, g.user, append(of.options, sluice.WithTTL(time.Minute), sluice.WithOwner("holder"))...)
		g.locks[kind], err = g.lockers[kind].Lock(ctx, of.name)
		require.NoError(g, err)
	}
	g.set, err = g.lockers[""].LockAll(ctx, []string{"one", "other"})
	require.NoError(g, err)
	g.oneOfTwo, err = g.lockers["permit"].Lock(ctx, "two")
	require.NoError(g, err)
	later := float64(time.Now().Add(time.Hour).UnixMilli())
	require.NoError(g, g.admin.ZAdd(ctx, "Lock:permits", redis.Z{Score: 1, Member: "ended"}).Err())
	require.NoError(g, g.admin.ZAdd(ctx, "Lock:two", redis.Z{Score: later, Member: "other"}).Err())
	require.NoError(g, g.admin.Set(ctx, "Lock:taken", "foreign", time.Minute).Err())
	require.NoError(g, g.admin.Set(ctx, "Lock:eternal", "foreign", 0).Err())
}

// fixture is what an operation of the table works on, with locks of a kind.
func (g *guarded) fixture(needs operations.Needs, kind string) *operations.Fixture {
	f := &operations.Fixture{Name: "free", Locker: g.lockers[kind], Lock: g.locks[kind], Set: g.set, Queue: g.queue, Remembering: g.recalls,
		Entry: sluice.Entry{ID: "a", Payload: []byte("p")}}
	switch needs {
	case operations.Held:
		f.Name = f.Lock.Name()
	case operations.Due:
		f.Entry = g.task("paid")
	case operations.Leased:
		f.Entry = g.task("mine")
	case operations.Dead:
		f.Entry.ID = "dead"
	case operations.Paused:
		f.Queue = g.paused
	}
	return f
}

// state is everything on the server, to the bit, except lines, which are hints: clients leave them
// in the background; and counts, which no operation needs.
func (g *guarded) state() map[string]string {
	state := operations.State(g.T, g.admin, "")
	maps.DeleteFunc(state, func(key, _ string) bool {
		return strings.HasSuffix(key, keyspace.Line) || strings.HasSuffix(key, keyspace.Counts)
	})
	return state
}

var (
	lifetimes  = regexp.MustCompile(`until [0-9]+`)
	tokenTexts = regexp.MustCompile(`[A-Z2-7]{26}`)
)

// alike says whether a key is as before: to the bit, but for the life of a lock and of a name with
// permits. A script that adopts, or takes a permit, puts that back by the milliseconds that were
// left, and one may pass meanwhile.
func alike(before, after string) bool {
	if isPermits := strings.HasPrefix(before, "[{-"); !isPermits && !tokenTexts.MatchString(before) {
		return before == after
	}
	was, is := lifetimes.FindString(before), lifetimes.FindString(after)
	var from, to int64
	_, _ = fmt.Sscanf(was+" "+is, "until %d until %d", &from, &to)
	return max(from-to, to-from) <= 5 && strings.TrimSuffix(before, was) == strings.TrimSuffix(after, is)
}

// decision is the sentinel that an error wraps; "refused" if it is an error of Redis's own.
func decision(err error) string {
	for _, sentinel := range []error{
		sluice.ErrLocked, sluice.ErrNotHeld, sluice.ErrLost, sluice.ErrStale, sluice.ErrNotFound,
		sluice.ErrUnknown, sluice.ErrInvalid, sluice.ErrCorrupt, sluice.ErrClosed,
	} {
		if errors.Is(err, sentinel) {
			return sentinel.Error()
		}
	}
	if err == nil {
		return "done"
	}
	return "refused"
}

// inLine waits until a client waits for the lock or queue with a key.
func (g *guarded) inLine(key string) {
	require.Eventually(g, func() bool { return systest.InLine(g.Context(), g.admin, key) > 0 }, 30*time.Second, time.Millisecond, key)
}
