package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// guarded is a server with a user of it whose rights are what the documented rule
// says, less what a test takes away. Everything is there for an operation to work on:
// a lock of each kind, and tasks in each state that a task can be in.
type guarded struct {
	*testing.T
	rule        []string
	admin       redis.UniversalClient
	user        redis.UniversalClient
	locker      *sluice.Locker
	queue       *sluice.Queue
	now         float64 // Unix seconds, when the tasks were put in
	held, fence *sluice.Lock
}

// newGuarded starts a server with the parts of the documented rule.
func newGuarded(t *testing.T, parts ...int) *guarded {
	s := redistest.Start(t)
	g := &guarded{T: t, admin: s.Client(t)}
	for _, part := range parts {
		g.rule = append(g.rule, redistest.Rules(t)[part]...)
	}
	g.grant("")
	g.user = dial(t, redis.Options{Addr: s.Addr, Username: "sluice", Password: "CHANGE-ME"})
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
	require.NoError(g, err)
	return sluice.Entry{ID: id, Score: score, Attempt: 1}
}

func (g *guarded) prepare() {
	g.Helper()
	ctx := g.Context()
	g.grant("")
	require.NoError(g, g.admin.FlushAll(ctx).Err())
	require.NoError(g, g.admin.ScriptFlush(ctx).Err())
	var err error
	g.locker = newLocker(g.T, g.user, sluice.WithTTL(time.Minute))
	g.queue, err = sluice.NewQueue(g.user, "q")
	require.NoError(g, err)
	g.held, err = g.locker.Lock(ctx, "held")
	require.NoError(g, err)
	g.fence, err = g.locker.Lock(ctx, "fenced", sluice.WithFencing())
	require.NoError(g, err)

	now, err := g.admin.Time(ctx).Result()
	require.NoError(g, err)
	g.now = float64(now.Unix())
	pipe := g.admin.Pipeline()
	pipe.Set(ctx, "Lock:taken", "somebody", time.Minute)
	pipe.Set(ctx, "Lock:eternal", "somebody", 0)
	for _, task := range []struct {
		id    string
		score float64
		field string // %s is the score
	}{
		{"plain", -10, ""},
		{"paid", -9, ":::p"},
		{"tried", -8, "2:%s::p"},
		{"lapsed", -7, "3:%s:5000000000:p"}, // a version waits for much later
		{"lapsed, no payload", -6, "3:%s:5000000000:"},
		{"spent", -5, "25:%s::p"},
		{"odd", -4, "not ours"},
		{"back", -3, "4:dead:3:whyp"}, // a dead letter that a foreign producer has put back
		{"mine", 900, "1:%s::p"},
		{"mine, deferred", 901, "1:%s:5000000000:p"},
		{"mine, deferred, no payload", 902, "1:%s:5000000000:"},
		{"mine, odd", 903, "not ours"},
		{"mine, back", 904, "4:dead:3:whyp"},
		{"later", 1000, ":::p"},
	} {
		score := fmt.Sprintf("%.0f", g.now+task.score)
		pipe.ZAdd(ctx, "Queue:q", redis.Z{Score: g.now + task.score, Member: task.id})
		if task.field != "" {
			pipe.HSet(ctx, "{Queue:q}:tasks", task.id, strings.ReplaceAll(task.field, "%s", score))
		}
	}
	for _, id := range []string{"dead", "dead, no payload", "back", "mine, back"} {
		pipe.ZAdd(ctx, "{Queue:q}:dead", redis.Z{Score: g.now, Member: id})
	}
	pipe.HSet(ctx, "{Queue:q}:tasks", "dead", "5:dead:3:whyp", "dead, no payload", "5:dead:3:why")
	_, err = pipe.Exec(ctx)
	require.NoError(g, err)
}

// state is everything on the server, to the bit.
func (g *guarded) state() map[string]string {
	g.Helper()
	ctx, state := g.Context(), map[string]string{}
	for _, key := range g.admin.Keys(ctx, "*").Val() {
		var content any
		switch g.admin.Type(ctx, key).Val() {
		case "string":
			content = g.admin.Get(ctx, key).Val()
		case "hash":
			content = g.admin.HGetAll(ctx, key).Val()
		case "zset":
			content = g.admin.ZRangeWithScores(ctx, key, 0, -1).Val()
		}
		state[key] = fmt.Sprint(content, " until ", g.admin.PExpireTime(ctx, key).Val().Milliseconds())
	}
	return state
}

var (
	instants   = regexp.MustCompile(`1\.[0-9.]+e\+09|1[0-9]{9}(\.[0-9]+)?`)
	lifetimes  = regexp.MustCompile(`until [0-9]+`)
	tokenTexts = regexp.MustCompile(`[A-Z2-7]{26}`)
	fenceTexts = regexp.MustCompile(`^1[0-9]{15}`)
)

// outline is a state without what differs from run to run: times and tokens.
func outline(state map[string]string) map[string]string {
	out := maps.Clone(state)
	for key, text := range out {
		text = fenceTexts.ReplaceAllString(text, "a fence")
		text = lifetimes.ReplaceAllString(text, "until some time")
		text = tokenTexts.ReplaceAllString(text, "a token")
		out[key] = instants.ReplaceAllString(text, "some time")
	}
	return out
}

// decision is what an error tells its caller; "refused" if Redis itself has.
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

// operation is one of the library's, on what prepare has put there.
type operation struct {
	name string
	run  func(ctx context.Context, g *guarded) error
}

// found makes it an error that an operation has not found what is there.
func found(there bool, err error) error {
	if err == nil && !there {
		return errors.New("found nothing")
	}
	return err
}

func ofLocks() []operation {
	return []operation{
		{"lock", func(ctx context.Context, g *guarded) error { _, err := g.locker.Lock(ctx, "free"); return err }},
		{"lock a taken one", func(ctx context.Context, g *guarded) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			_, err := g.locker.Lock(ctx, "taken")
			return err
		}},
		{"try lock", func(ctx context.Context, g *guarded) error { _, err := g.locker.TryLock(ctx, "free"); return err }},
		{"try lock a taken one", func(ctx context.Context, g *guarded) error { _, err := g.locker.TryLock(ctx, "taken"); return err }},
		{"try lock one without TTL", func(ctx context.Context, g *guarded) error { _, err := g.locker.TryLock(ctx, "eternal"); return err }},
		{"extend a lock", func(ctx context.Context, g *guarded) error { return g.held.Extend(ctx, time.Hour) }},
		{"ttl", func(ctx context.Context, g *guarded) error { _, err := g.held.TTL(ctx); return err }},
		{"inspect", func(ctx context.Context, g *guarded) error {
			info, err := g.locker.Inspect(ctx, "taken")
			return found(info.Held, err)
		}},
		{"force unlock", func(ctx context.Context, g *guarded) error {
			released, err := g.locker.ForceUnlock(ctx, "taken")
			return found(released, err)
		}},
		{"unlock", func(ctx context.Context, g *guarded) error { return g.held.Unlock(ctx) }},
		{"fenced lock", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.Lock(ctx, "free", sluice.WithFencing())
			return err
		}},
		{"fenced lock of a taken one", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.TryLock(ctx, "taken", sluice.WithFencing())
			return err
		}},
		{"fenced lock of one without TTL", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.TryLock(ctx, "eternal", sluice.WithFencing())
			return err
		}},
		{"unlock a fenced one", func(ctx context.Context, g *guarded) error { return g.fence.Unlock(ctx) }},
	}
}

func ofQueues() []operation {
	enqueue := func(tasks ...sluice.Task) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			_, err := g.queue.EnqueueBatch(ctx, tasks)
			return err
		}
	}
	finish := func(finish func(context.Context, *guarded, ...sluice.Entry) error, ids ...string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			var es []sluice.Entry
			for _, id := range ids {
				es = append(es, g.task(id))
			}
			return finish(ctx, g, es...)
		}
	}
	dequeue := func(ctx context.Context, g *guarded, es ...sluice.Entry) error { return g.queue.Dequeue(ctx, es...) }
	release := func(ctx context.Context, g *guarded, es ...sluice.Entry) error { return g.queue.Release(ctx, es...) }
	bury := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		return g.queue.Bury(ctx, es[0], "why")
	}
	extend := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		_, err := g.queue.Extend(ctx, es[0], time.Hour)
		return err
	}
	retry := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		return g.queue.Retry(ctx, es[0], time.Hour)
	}
	reschedule := func(id string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			there, err := g.queue.Reschedule(ctx, id, time.Hour)
			return found(there, err)
		}
	}
	cancel := func(id string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			there, err := g.queue.Cancel(ctx, id)
			return found(there, err)
		}
	}
	p, far := []byte("p"), 2*time.Hour
	return []operation{
		{"enqueue", enqueue(sluice.Task{ID: "a", Delay: far})},
		{"enqueue a new head", enqueue(sluice.Task{ID: "a", At: time.Unix(1, 0)})},
		{"enqueue with a payload", enqueue(sluice.Task{ID: "a", Payload: p, Delay: far})},
		{"enqueue several", enqueue(sluice.Task{ID: "a", Delay: far}, sluice.Task{ID: "b", Payload: p, Delay: far})},
		{"enqueue several, some known", enqueue(sluice.Task{ID: "a", Payload: p, Delay: far}, sluice.Task{ID: "later", Delay: far},
			sluice.Task{ID: "dead", Delay: far}, sluice.Task{ID: "mine", Delay: far}, sluice.Task{ID: "back", Delay: far})},
		{"enqueue one twice", enqueue(sluice.Task{ID: "later", Payload: p, Delay: far}, sluice.Task{ID: "a", Delay: far}, sluice.Task{ID: "a", Delay: far})},
		{"enqueue a known one", enqueue(sluice.Task{ID: "later", Payload: p, Delay: far})},
		{"enqueue a known one, payload removed", enqueue(sluice.Task{ID: "later", Delay: far})},
		{"enqueue a leased one", enqueue(sluice.Task{ID: "mine", Payload: p, Delay: far})},
		{"enqueue a dead one", enqueue(sluice.Task{ID: "dead", Payload: p, Delay: far})},
		{"enqueue a dead one, no payload", enqueue(sluice.Task{ID: "dead", Delay: far})},
		{"enqueue one that was put back", enqueue(sluice.Task{ID: "back", Delay: far})},
		{"claim one", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Claim(ctx, 1, time.Hour)
			return found(len(es) > 0, err)
		}},
		{"claim all", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Claim(ctx, 99, time.Hour)
			return found(len(es) > 0, err)
		}},
		{"pop one", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Pop(ctx, 1)
			return found(len(es) > 0, err)
		}},
		{"pop all", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Pop(ctx, 99)
			return found(len(es) > 0, err)
		}},
		{"peek", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Peek(ctx, 99)
			return found(len(es) > 0, err)
		}},
		{"dequeue", finish(dequeue, "mine")},
		{"dequeue, deferred", finish(dequeue, "mine, deferred")},
		{"dequeue several", finish(dequeue, "mine", "mine, back", "mine, deferred, no payload", "mine, odd", "mine, deferred")},
		{"release", finish(release, "mine")},
		{"release several", finish(release, "mine", "mine, back", "mine, deferred, no payload", "mine, deferred")},
		{"retry", finish(retry, "mine")},
		{"retry, deferred", finish(retry, "mine, deferred, no payload")},
		{"extend", finish(extend, "mine")},
		{"extend, back", finish(extend, "mine, back")},
		{"bury", finish(bury, "mine")},
		{"bury, deferred", finish(bury, "mine, deferred, no payload")},
		{"bury, odd", finish(bury, "mine, odd")},
		{"dead", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Dead(ctx, 99)
			return found(len(es) > 0, err)
		}},
		{"revive", func(ctx context.Context, g *guarded) error {
			n, err := g.queue.Revive(ctx, "dead", "back")
			return found(n > 0, err)
		}},
		{"revive one without payload", func(ctx context.Context, g *guarded) error {
			n, err := g.queue.Revive(ctx, "dead, no payload")
			return found(n > 0, err)
		}},
		{"cancel", cancel("later")},
		{"cancel a dead one", cancel("dead")},
		{"reschedule", reschedule("later")},
		{"reschedule a leased one", reschedule("mine")},
		{"reschedule a lapsed one", reschedule("lapsed")},
		{"get", func(ctx context.Context, g *guarded) error { _, err := g.queue.Get(ctx, "later"); return err }},
		{"get a dead one", func(ctx context.Context, g *guarded) error { _, err := g.queue.Get(ctx, "dead"); return err }},
		{"stats", func(ctx context.Context, g *guarded) error {
			s, err := g.queue.Stats(ctx)
			return found(s.Due > 0, err)
		}},
		{"wait", func(ctx context.Context, g *guarded) error { return g.queue.Wait(ctx) }},
		{"purge", func(ctx context.Context, g *guarded) error { return g.queue.Purge(ctx) }},
	}
}

// TestOneGrantMissing takes one word after the other from the documented rule, and
// has each operation carried out: what does not need the word does what it always
// does; what does need it fails with the server's own error, and has changed nothing.
func TestOneGrantMissing(t *testing.T) {
	t.Parallel()
	for _, half := range []struct {
		name       string
		parts      []int
		operations []operation
	}{
		{"locks", []int{grantsOfAll, grantsOfLocks, grantsOfFences}, ofLocks()},
		{"queue", []int{grantsOfAll, grantsOfQueues}, ofQueues()},
	} {
		t.Run(half.name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfQueues)
			var words []string
			for _, part := range half.parts {
				words = append(words, redistest.Rules(t)[part]...)
			}
			denials := map[string]int{}
			for _, op := range half.operations {
				always := g.outcome(op, "")
				for _, word := range words {
					if !strings.ContainsAny(word[:1], "+~&") {
						continue
					}
					switch outcome := g.outcome(op, word); outcome {
					case always:
					case denied:
						denials[word]++
					default:
						t.Errorf("%s without %s: %s\nwith it: %s", op.name, word, outcome, always)
					}
				}
			}
			// Without these everything works, if later (see TestPubSubDenied); without
			// the last, with higher fences than need be.
			hints := []string{"+publish", "+subscribe", "+unsubscribe", "+ping", "+decrby"}
			for _, word := range words {
				if strings.ContainsAny(word[:1], "+~") && !slices.Contains(hints, word) {
					require.Positive(t, denials[word], "nothing needs %s", word)
				}
			}
		})
	}
}

// outcome carries an operation out with a word missing, and returns what came of it:
// its decision and the state after, or that it was denied.
func (g *guarded) outcome(op operation, less string) string {
	g.Helper()
	at := fmt.Sprintf("%s without %s", op.name, less)
	g.prepare()
	before := g.state()
	g.grant(less)
	start := time.Now()
	err := op.run(g.Context(), g)
	took := time.Since(start)
	after := g.state()
	_ = g.locker.Close() // else it would go on trying to release what it may not
	require.Less(g, took, time.Second, at)

	var server redis.Error
	if decision(err) != "refused" {
		return fmt.Sprint(decision(err), outline(after))
	}
	require.NotEmpty(g, less, "%s: %v", at, err)
	require.ErrorAs(g, err, &server, at)
	require.Regexp(g, denial, err.Error(), at)
	for key := range after {
		if before[key] == after[key] {
			delete(before, key)
			delete(after, key)
		}
	}
	if len(before)+len(after) > 0 {
		g.Errorf("a half-write: %s\nbefore %v\nafter %v\nerror %v", at, before, after, err)
	}
	return denied
}

// denied is the outcome of an operation that ended in an error, as it should.
const denied = "denied"

// TestPubSubDenied takes away what the wake-ups need. Everything works: a waiter looks
// by itself, within its interval, and does not storm the server with connections.
func TestPubSubDenied(t *testing.T) {
	t.Parallel()
	for _, less := range []string{"", "+publish", "+subscribe", "+unsubscribe", "+ping", "&{Lock:*}:wake", "&{Queue:*}:wake"} {
		t.Run(less, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, grantsOfAll, grantsOfLocks, grantsOfQueues)
			g.grant(less)
			ctx := t.Context()
			l := newLocker(t, g.user, sluice.WithRetryInterval(200*time.Millisecond))
			q, err := sluice.NewQueue(g.user, "q", sluice.WithPollInterval(200*time.Millisecond))
			require.NoError(t, err)
			require.NoError(t, g.admin.Set(ctx, "Lock:a", "somebody", time.Minute).Err())
			before, name := connections(g), "{Lock:a}:wake"

			ended := make(chan error, 2)
			go func() { _, err := l.Lock(ctx, "a"); ended <- err }()
			go func() { ended <- q.Wait(ctx) }()
			time.Sleep(time.Second) // they wait, and whatever tries to subscribe tries again
			require.Empty(t, ended)
			require.LessOrEqual(t, connections(g)-before, 6)
			if less == "+subscribe" {
				g.grant("") // and they subscribe, though not at once
				require.Eventually(t, func() bool { return g.admin.PubSubNumSub(ctx, name).Val()[name] == 1 }, 15*time.Second, 10*time.Millisecond)
			}

			other, err := sluice.NewQueue(g.user, "q")
			require.NoError(t, err)
			_, err = other.Enqueue(ctx, sluice.Task{ID: "a"})
			require.NoError(t, err)
			require.NoError(t, g.admin.Del(ctx, "Lock:a").Err())
			start := time.Now()
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
			require.Less(t, time.Since(start), 400*time.Millisecond)
		})
	}
}

// connections is how many the server has taken so far.
func connections(g *guarded) int {
	info := g.admin.Info(g.Context(), "stats").Val()
	n, err := strconv.Atoi(regexp.MustCompile(`total_connections_received:(\d+)`).FindStringSubmatch(info)[1])
	require.NoError(g, err)
	return n
}

// TestDocumentedPatterns: with the documented rule, as it stands there, everything
// works under the default prefixes, for names with a hash tag too; and nothing works
// beyond them.
func TestDocumentedPatterns(t *testing.T) {
	t.Parallel()
	for _, half := range []struct {
		name  string
		parts []int
		may   func(g *guarded) []error
		not   func(g *guarded) []error
	}{
		{"locks", []int{grantsOfAll, grantsOfLocks}, useLocks(), useQueues()},
		{"queues", []int{grantsOfAll, grantsOfQueues}, useQueues(), useLocks()},
		{"fences", []int{grantsOfAll, grantsOfLocks, grantsOfFences}, useLocks(sluice.WithFencing()), useQueues()},
		{"no fences", []int{grantsOfAll, grantsOfLocks}, useLocks(), useLocks(sluice.WithFencing())},
		{"other prefixes", []int{grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfQueues}, useQueues(), func(g *guarded) []error {
			return append(useLocks(sluice.WithLockPrefix("L:"))(g), useQueues(sluice.WithQueuePrefix("Q:"))(g)...)
		}},
		{"anything else", []int{grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfQueues}, useLocks(), beyond},
	} {
		t.Run(half.name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, half.parts...)
			for _, err := range half.may(g) {
				require.NoError(t, err)
			}
			refused := half.not(g)
			require.NotEmpty(t, refused)
			for i, err := range refused {
				var server redis.Error
				require.ErrorAs(t, err, &server, "%d", i)
				require.Regexp(t, denial, err.Error(), "%d", i)
				require.Equal(t, "refused", decision(err))
			}
		})
	}
}

// denial is how a server says that access rules forbid something.
var denial = regexp.MustCompile("NOPERM|the script can't")

// tagged are names of locks and queues: a plain one, and those with hash tags.
var tagged = []string{"stock:phone", "{eu}:stock", "stock:{eu}"}

func useLocks(opts ...sluice.LockOption) func(*guarded) []error {
	return func(g *guarded) (errs []error) {
		ctx := g.Context()
		for _, name := range tagged {
			k, err := newLocker(g.T, g.user, opts...).Lock(ctx, name)
			if errs = append(errs, err); err != nil {
				continue
			}
			other, ended := newLocker(g.T, g.user), make(chan error, 1)
			go func() {
				k, err := other.Lock(ctx, name, sluice.WithRetryInterval(time.Hour))
				ended <- errors.Join(err, k.Unlock(ctx))
			}()
			g.subscribed("Lock:" + name)
			errs = append(errs, k.Unlock(ctx), <-ended)
		}
		return errs
	}
}

func useQueues(opts ...sluice.QueueOption) func(*guarded) []error {
	return func(g *guarded) (errs []error) {
		ctx := g.Context()
		for _, name := range tagged {
			q, err := sluice.NewQueue(g.user, name, append(opts, sluice.WithPollInterval(time.Hour))...)
			require.NoError(g, err)
			if _, err = q.Stats(ctx); err != nil {
				errs = append(errs, err)
				continue
			}
			ended := make(chan error, 1)
			go func() { ended <- q.Wait(ctx) }()
			g.subscribed("Queue:" + name)
			_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p")})
			errs = append(errs, err, <-ended)
			es, err := q.Claim(ctx, 1, time.Minute)
			errs = append(errs, err, q.Dequeue(ctx, es...), q.Purge(ctx))
		}
		return errs
	}
}

// subscribed waits until somebody listens for what becomes of a key.
func (g *guarded) subscribed(key string) {
	channel := "{" + key + "}:wake"
	if strings.Contains(key, "{") {
		channel = key + ":wake"
	}
	require.Eventually(g, func() bool {
		return g.admin.PubSubNumSub(g.Context(), channel).Val()[channel] > 0
	}, 5*time.Second, time.Millisecond, channel)
}

// beyond is what nobody needs who uses the library.
func beyond(g *guarded) (errs []error) {
	ctx, script := g.Context(), "return redis.call(KEYS[1], KEYS[2])"
	for _, args := range [][]any{
		{"get", "other"}, {"get", "Lock"}, {"set", "{Lock:a}:tasks", "x"}, {"get", "{Queue:a}:other"}, {"get", "lock:a"},
		{"publish", "other", ""}, {"publish", "{Lock:a}:other", ""}, {"subscribe", "other"}, {"psubscribe", "*"},
		{"keys", "*"}, {"scan", "0"}, {"flushall"}, {"config", "get", "*"}, {"acl", "list"}, {"script", "flush"},
		{"client", "list"}, {"info"}, {"monitor"}, {"replicaof", "no", "one"}, {"shutdown"},
		{"eval", script, "2", "type", "Lock:a"}, {"eval", "return redis.call('get', 'other')", "0"},
	} {
		errs = append(errs, g.user.Do(ctx, args...).Err())
	}
	return errs
}

// TestOneChannelDenied: a channel that is forbidden takes no other with it, not even
// when the connection is made anew and asks for all of them.
func TestOneChannelDenied(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfLocks)
	g.rule = append(g.rule, "&{Lock:b}:wake")
	g.grant("&{Lock:*}:wake")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := newLocker(t, g.user, sluice.WithRetryInterval(100*time.Millisecond))
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, g.admin.Set(ctx, "Lock:"+name, "somebody", time.Hour).Err())
		go func() { _, _ = l.Lock(ctx, name) }()
	}
	subscribed := func() bool { return g.admin.PubSubNumSub(ctx, "{Lock:b}:wake").Val()["{Lock:b}:wake"] == 1 }
	require.Eventually(t, subscribed, 5*time.Second, 10*time.Millisecond)
	for range 3 {
		require.NoError(t, g.admin.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
		require.False(t, subscribed())
		require.Eventually(t, subscribed, 5*time.Second, 10*time.Millisecond, "nobody asks any more")
	}
}
