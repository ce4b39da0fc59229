package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
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

// TestAccess_OneGrantMissing takes one word after the other from the documented rule, and
// has each operation carried out: what does not need the word does what it always
// does; what does need it fails with the server's own error, and has changed nothing.
func TestAccess_OneGrantMissing(t *testing.T) {
	t.Parallel()
	for _, half := range []struct {
		name       string
		locks      bool
		parts      []int
		operations []operation
	}{
		{"locks", true, []int{grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfPermits}, append(ofTable(true), ofLocks()...)},
		{"queue", false, []int{grantsOfAll, grantsOfQueues}, append(ofTable(false), ofQueues()...)},
	} {
		t.Run(half.name, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, half.parts...)
			var words []string
			for _, part := range half.parts {
				words = append(words, redistest.Rules(t)[part]...)
			}
			denials := map[string]int{}
			for _, op := range half.operations {
				always := g.outcome(op, half.locks, "")
				for _, word := range words {
					if !strings.ContainsAny(word[:1], "+~&") {
						continue
					}
					switch outcome := g.outcome(op, half.locks, word); outcome {
					case always:
					case denied:
						denials[word]++
					default:
						t.Errorf("%s without %s: %s\nwith it: %s", op.name, word, outcome, always)
					}
				}
			}
			// Without these everything works, if later (see TestAccess_WorksWithoutPubSub); without
			// the last, with higher fences than need be.
			hints := []string{"+publish", "+subscribe", "+unsubscribe", "+ping", "+pubsub|numsub", "+decrby"}
			if !half.locks {
				hints = append(hints, "+pttl", "+pexpire", "+zremrangebyscore", "+hscan") // of a line, counts, workers, and units of what is gone
			}
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
func (g *guarded) outcome(op operation, locks bool, less string) string {
	g.Helper()
	at := fmt.Sprintf("%s without %s", op.name, less)
	g.prepare(locks)
	before := g.state()
	g.grant(less)
	start := time.Now()
	value, err := op.run(g.Context(), g)
	took := time.Since(start)
	after := g.state()
	for _, l := range g.lockers {
		_ = l.Close() // else it would go on trying to release what it may not
	}
	require.Less(g, took, 5*time.Second, at)

	var server redis.Error
	if decision(err) != "refused" {
		require.False(g, err == nil && operations.FoundNothing(value), "%s found nothing", at)
		return fmt.Sprint(decision(err), operations.Outline(after))
	}
	require.NotEmpty(g, less, "%s: %v", at, err)
	require.ErrorAs(g, err, &server, at)
	require.Regexp(g, denial, err.Error(), at)
	for key := range after {
		if alike(before[key], after[key]) {
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

// TestAccess_WorksWithoutPubSub takes away what the wake-ups need. Everything works: a
// waiter polls within its interval, and does not storm the server with connections.
func TestAccess_WorksWithoutPubSub(t *testing.T) {
	t.Parallel()
	for _, less := range []string{"", "+publish", "+subscribe", "+unsubscribe", "+ping", "+pubsub|numsub", "&{Lock:*}:wake:*", "&{Queue:*}:wake:*"} {
		t.Run(less, func(t *testing.T) {
			t.Parallel()
			g := newGuarded(t, grantsOfAll, grantsOfLocks, grantsOfQueues)
			g.grant(less)
			ctx := t.Context()
			l := systest.NewLocker(t, g.user, sluice.WithRetryInterval(200*time.Millisecond))
			q, err := sluice.NewQueue(g.user, "q", sluice.WithPollInterval(200*time.Millisecond))
			require.NoError(t, err)
			require.NoError(t, g.admin.Set(ctx, "Lock:a", "foreign", time.Minute).Err())
			before := systest.Connections(t, g.admin)

			ended := make(chan error, 2)
			go func() { _, err := l.Lock(ctx, "a"); ended <- err }()
			go func() { ended <- q.Wait(ctx) }()
			// They wait, and whatever tries to subscribe tries again.
			require.Never(t, func() bool { return len(ended) > 0 }, time.Second, 10*time.Millisecond)
			require.LessOrEqual(t, systest.Connections(t, g.admin)-before, 6)
			if less == "+subscribe" {
				g.grant("") // and they subscribe, though not at once
				require.Eventually(t, func() bool { return systest.InLine(ctx, g.admin, "Lock:a") == 1 }, 15*time.Second, 10*time.Millisecond)
			}

			other, err := sluice.NewQueue(g.user, "q")
			require.NoError(t, err)
			_, err = other.Enqueue(ctx, sluice.Task{ID: "a"})
			require.NoError(t, err)
			require.NoError(t, g.admin.Del(ctx, "Lock:a").Err())
			lag, start := systest.LagOf(t, g.admin), time.Now()
			require.NoError(t, <-ended)
			require.NoError(t, <-ended)
			require.Less(t, time.Since(start), 400*time.Millisecond+10*lag())
		})
	}
}

// TestAccess_LineStaysWherePublishIsDenied: a user that may not tell clients of tasks takes none of
// them out of the line. Without the line's key nothing is enqueued.
func TestAccess_LineStaysWherePublishIsDenied(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfQueues)
	ctx := t.Context()
	q, err := sluice.NewQueue(g.user, "q")
	require.NoError(t, err)
	line := keyspace.Companion("Queue:q", keyspace.Line)
	for _, less := range []string{"+publish", "&{Queue:*}:wake:*"} {
		g.grant(less)
		for i, client := range []string{"watchman", "other"} {
			score := float64(time.Now().UnixMicro()) + 1e9
			if i == 0 {
				score -= 1e16
			}
			require.NoError(t, g.admin.ZAdd(ctx, line, redis.Z{Score: score, Member: client}).Err())
		}
		for _, delay := range []time.Duration{time.Minute, 0} {
			_, err := q.Enqueue(ctx, sluice.Task{ID: "a", Delay: delay})
			require.NoError(t, err)
			require.Equal(t, []string{"watchman", "other"}, g.admin.ZRange(ctx, line, 0, -1).Val(), "%s %v", less, delay)
		}
	}
	g.grant("~{Queue:*}:line")
	_, err = q.Enqueue(ctx, sluice.Task{ID: "b"})
	require.ErrorContains(t, err, "NOPERM")
	require.EqualValues(t, 1, g.admin.ZCard(ctx, "Queue:q").Val())
}

// TestAccess_DocumentedPatterns: with the documented rule, as it stands there, everything
// works under the default prefixes, for names with a hash tag too; and nothing works
// beyond them.
func TestAccess_DocumentedPatterns(t *testing.T) {
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
		{"no fences", []int{grantsOfAll, grantsOfLocks}, useLocks(), func(g *guarded) []error {
			return useLocks(sluice.WithFencing())(g)[:1] // those with a hash tag have all their keys under ~Lock:*
		}},
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
var denial = regexp.MustCompile("NOPERM|the script can't|ACL failure in script") // Redis 7.0, and later servers

// tagged are names of locks and queues: a plain one, and those with hash tags.
var tagged = []string{"stock:phone", "{eu}:phone", "stock:{eu}"}

func useLocks(opts ...sluice.LockOption) func(*guarded) []error {
	return func(g *guarded) (errs []error) {
		ctx := g.Context()
		for _, name := range tagged {
			k, err := systest.NewLocker(g.T, g.user, opts...).Lock(ctx, name)
			if errs = append(errs, err); err != nil {
				continue
			}
			other, ended := systest.NewLocker(g.T, g.user), make(chan error, 1)
			go func() {
				k, err := other.Lock(ctx, name, sluice.WithRetryInterval(time.Hour))
				ended <- errors.Join(err, k.Unlock(ctx))
			}()
			g.inLine("Lock:" + name)
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
			g.inLine("Queue:" + name)
			_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p")})
			errs = append(errs, err, <-ended)
			es, err := q.Claim(ctx, 1, time.Minute)
			errs = append(errs, err, q.Dequeue(ctx, es...), q.Purge(ctx))
		}
		return errs
	}
}

// beyond is what no user of the library needs.
func beyond(g *guarded) (errs []error) {
	ctx, script := g.Context(), "return redis.call(KEYS[1], KEYS[2])"
	for _, args := range [][]any{
		{"get", "other"}, {"get", "Lock"}, {"set", "{Lock:a}:tasks", "x"}, {"set", "{Lock:a}:state", "x"}, {"get", "{Queue:a}:other"}, {"get", "lock:a"},
		{"publish", "other", ""}, {"publish", "{Lock:a}:other", ""}, {"subscribe", "other"}, {"psubscribe", "*"},
		{"keys", "*"}, {"scan", "0"}, {"flushall"}, {"config", "get", "*"}, {"acl", "list"}, {"script", "flush"},
		{"client", "list"}, {"info"}, {"monitor"}, {"replicaof", "no", "one"}, {"shutdown"},
		{"eval", script, "2", "type", "Lock:a"}, {"eval", "return redis.call('get', 'other')", "0"},
	} {
		errs = append(errs, g.user.Do(ctx, args...).Err())
	}
	return errs
}

// TestAccess_OneChannelDenied: a channel that is forbidden takes no other with it, not even
// when the connection is made anew and asks for all of them.
func TestAccess_OneChannelDenied(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfLocks)
	g.rule = append(g.rule, "&{Lock:b}:wake:*")
	g.grant("&{Lock:*}:wake:*")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := systest.NewLocker(t, g.user, sluice.WithRetryInterval(100*time.Millisecond))
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, g.admin.Set(ctx, "Lock:"+name, "foreign", time.Hour).Err())
		go func() { _, _ = l.Lock(ctx, name) }()
	}
	// by is which connections are subscribed.
	by := func() []string {
		text, err := g.admin.Do(ctx, "CLIENT", "LIST", "TYPE", "pubsub").Text()
		require.NoError(t, err)
		return regexp.MustCompile(`\bid=\d+`).FindAllString(text, -1)
	}
	subscribed := func() bool { return systest.Listeners(ctx, g.admin, "Lock:b") == 1 }
	require.Eventually(t, subscribed, 30*time.Second, 10*time.Millisecond)
	for range 3 {
		before := by()
		require.NotEmpty(t, before)
		require.NoError(t, g.admin.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
		again := func() bool { return subscribed() && !slices.Contains(by(), before[0]) }
		require.Eventually(t, again, 30*time.Second, 10*time.Millisecond, "it was not subscribed again")
	}
}

// TestWorker_FinishesWhatItMayNotClaim: a user that may claim no more finishes what it has claimed,
// though one script does both.
func TestWorker_FinishesWhatItMayNotClaim(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Start(t)
	admin := s.Client(t)
	acl := func(rules ...any) {
		require.NoError(t, admin.Do(ctx, append([]any{"acl", "setuser", "worker"}, rules...)...).Err())
	}
	acl("on", ">secret", "~*", "&*", "+@all")
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "worker", Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	b := systest.NewQueueTest(t, rdb, redistest.Name(t))
	for _, id := range []string{"a", "b", "c"} {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
	}
	began, finish := make(chan bool), make(chan bool)
	w := &sluice.Worker{Queue: b.Q, Lease: time.Hour, Concurrency: 8, Logger: slog.New(slog.DiscardHandler), Handler: func(context.Context, sluice.Entry) error {
		began <- true
		<-finish
		return nil
	}}
	stop := systest.StartWorker(t, w)
	for range 3 {
		<-began
	}
	acl("-zadd")
	_, err := b.On(admin).Enqueue(ctx, sluice.Task{ID: "d"}) // so that there is something to be claimed
	require.NoError(t, err)
	close(finish)
	b.Eventually(func() bool { return w.Stats().Done == 3 })
	require.NoError(t, stop())
}

// TestAccess_APurgeThatIsDeniedPutsNothingBack: what the tasks hold of a stock stays theirs.
func TestAccess_APurgeThatIsDeniedPutsNothingBack(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfQueues)
	q, err := sluice.NewQueue(g.user, "shop")
	require.NoError(t, err)
	require.NoError(t, q.SetStock(t.Context(), "phone", 5))
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a", Take: sluice.Take{Item: "phone", Units: 2}})
	require.NoError(t, err)
	for _, word := range []string{"+unlink", "+hdel"} {
		g.grant(word)
		require.Error(t, q.Purge(t.Context()), word)
		g.grant("")
		stock, err := q.Stock(t.Context(), "phone")
		require.NoError(t, err)
		require.EqualValues(t, 3, stock.Left, word)
		_, err = q.Get(t.Context(), "a")
		require.NoError(t, err, word)
	}
	require.NoError(t, q.Purge(t.Context()))
	stock, err := q.Stock(t.Context(), "phone")
	require.NoError(t, err)
	require.EqualValues(t, 5, stock.Left)
}
