package sluice

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
)

// lineScripts runs the scripts that join and move the line of one lock, as processes of whose library only these are left.
type lineScripts struct {
	*testing.T
	rdb       redis.UniversalClient
	key, line string
}

func newLineScripts(t *testing.T, rdb redis.UniversalClient) *lineScripts {
	t.Helper()
	key := "Lock:" + redistest.Name(t)
	return &lineScripts{t, rdb, key, "{" + key + "}:line"}
}

// eachLine runs a test of the line on every backend.
func eachLine(t *testing.T, test func(t *testing.T, l *lineScripts)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, newLineScripts(t, s.Client(t))) })
}

// eachKind runs a test of the line of plain locks, of fenced ones and of permits: of two, of which another one holds one.
func eachKind(t *testing.T, test func(t *testing.T, l *lineScripts, k lineKind)) {
	t.Helper()
	eachLine(t, func(t *testing.T, l *lineScripts) { kindsOn(t, l.rdb, test) })
}

// kindsOn is eachKind on one server.
func kindsOn(t *testing.T, rdb redis.UniversalClient, test func(t *testing.T, l *lineScripts, k lineKind)) {
	t.Helper()
	for name, k := range lineKinds {
		t.Run(name, func(t *testing.T) {
			l := newLineScripts(t, rdb)
			if k.acquire == scriptPermitAcquire {
				require.Nil(t, l.ask(k, "another", "", ""))
			}
			test(t, l, k)
		})
	}
}

// lineKind is a kind of locks: its scripts, and the third argument of the first.
type lineKind struct {
	acquire, release *redisexec.Script
	third            string
}

var lineKinds = map[string]lineKind{
	"plain":   {scriptAcquire, scriptRelease, ""},
	"fenced":  {scriptAcquire, scriptRelease, "1000"},
	"permits": {scriptPermitAcquire, scriptPermitRelease, "2"},
}

func (k lineKind) keys(l *lineScripts) []string {
	if k.third == "1000" {
		return []string{l.key, l.line, "{" + l.key + "}:fence"}
	}
	return []string{l.key, l.line}
}

// placed is the reply of an acquisition that has not taken the lock.
type placed struct {
	left  time.Duration
	ahead int64
	score string
}

// ask has a member try for a minute or, if how is "yield", only join. It returns nil if it has the lock.
func (l *lineScripts) ask(k lineKind, member, score, how string) *placed {
	l.Helper()
	reply, err := l.rdb.Eval(l.Context(), k.acquire.Source(), k.keys(l), "token of "+member, 60_000, k.third, member, score, how).Result()
	require.NoError(l, err)
	list, ok := reply.([]any)
	if !ok {
		_, err := decodeFence(reply)
		require.NoError(l, err)
		return nil
	}
	require.Len(l, list, 3)
	return &placed{time.Duration(list[0].(int64)) * time.Millisecond, list[1].(int64), list[2].(string)}
}

// hold takes the lock for a holder without a place.
func (l *lineScripts) hold(k lineKind) {
	l.Helper()
	require.Nil(l, l.ask(k, "", "", ""))
}

// release releases what a member holds, and leave takes it out of the line. They return how many were woken, -1 if nothing was
// released.
func (l *lineScripts) release(k lineKind, holder string) int {
	l.Helper()
	return l.end(k, "token of "+holder, "")
}

func (l *lineScripts) leave(k lineKind, member string) int {
	l.Helper()
	return l.end(k, member, member)
}

func (l *lineScripts) end(k lineKind, token, member string) int {
	l.Helper()
	n, err := l.rdb.Eval(l.Context(), k.release.Source(), k.keys(l), token, member, 0, "").Int()
	require.NoError(l, err)
	return n - 1
}

// listen has a process listen, and returns where it hears.
func (l *lineScripts) listen(member string) <-chan *redis.Message {
	l.Helper()
	process, _, _ := strings.Cut(strings.TrimPrefix(member, "*"), ":")
	subscribe := l.rdb.Subscribe
	if member[0] == '*' {
		subscribe = l.rdb.SSubscribe
	}
	pubsub := subscribe(l.Context(), "{"+l.key+"}:wake:"+process)
	l.Cleanup(func() { _ = pubsub.Close() })
	_, err := pubsub.Receive(l.Context())
	require.NoError(l, err)
	return pubsub.Channel()
}

// hears takes the next message, which must come.
func (l *lineScripts) hears(messages <-chan *redis.Message) string {
	l.Helper()
	select {
	case m := <-messages:
		return m.Payload
	case <-time.After(10 * time.Second):
		require.FailNow(l, "no message")
		return ""
	}
}

// inLine returns the members of the line in order.
func (l *lineScripts) inLine() []string { return l.rdb.ZRange(l.Context(), l.line, 0, -1).Val() }

// put puts a member that none listens for into the line.
func (l *lineScripts) put(member string, score float64) {
	l.Helper()
	require.NoError(l, l.rdb.ZAdd(l.Context(), l.line, redis.Z{Score: score, Member: member}).Err())
}

func (l *lineScripts) number(score string) float64 {
	n, err := strconv.ParseFloat(score, 64)
	require.NoError(l, err)
	return n
}

const day = 864e8 // in microseconds, as scores are

// TestScripts_ScoresOfALineRise: a process joins behind the last, also if the server's clock was set back, by a day at most. What is
// further ahead is foreign, and ignored.
func TestScripts_ScoresOfALineRise(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		for _, process := range []string{"a:1", "b:1", "c:1", "d:1"} {
			l.listen(process)
		}
		l.hold(k)
		now, err := l.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		first := l.ask(k, "a:1", "", "join")
		require.Zero(t, first.ahead)
		require.InDelta(t, float64(now.UnixMicro()), l.number(first.score), 60e6)
		ahead := float64(now.UnixMicro()) + day - 60e6
		l.put("later:1", ahead)
		second := l.ask(k, "b:1", "", "yield")
		require.Equal(t, ahead+1, l.number(second.score))
		require.EqualValues(t, 2, second.ahead)
		require.Equal(t, ahead+2, l.number(l.ask(k, "c:1", "", "join").score))
		require.NoError(t, l.rdb.ZRem(t.Context(), l.line, "later:1", "b:1", "c:1").Err())

		l.put("foreign", ahead+day)
		third := l.ask(k, "d:1", "", "join")
		require.EqualValues(t, 1, third.ahead)
		require.InDelta(t, float64(now.UnixMicro()), l.number(third.score), 60e6)
		require.Equal(t, []string{"a:1", "d:1", "foreign"}, l.inLine())
	})
}

// TestScripts_AClockThatIsSetBack: those who join then stand behind the others.
func TestScripts_AClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	l, k := newLineScripts(t, rdb), lineKind{scriptAcquire, scriptRelease, ""}
	start := time.Now()
	m.SetTime(start)
	l.hold(k)
	for i := range 5 {
		member := fmt.Sprintf("%c:1", 'e'-i) // by name they would stand the other way round
		l.listen(member)
		require.EqualValues(t, i, l.ask(k, member, "", "join").ahead)
		m.SetTime(start.Add(-time.Duration(i) * time.Hour))
	}
	require.Equal(t, []string{"e:1", "d:1", "c:1", "b:1", "a:1"}, l.inLine())
}

// TestScripts_AProcessStandsInLineOnce: with its first score, however often it asks. Out of the line it comes back to its old place.
func TestScripts_AProcessStandsInLineOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("b:1")
		l.listen("a:1")
		l.hold(k)
		first := l.ask(k, "b:1", "", "join")
		second := l.ask(k, "a:1", "", "join")
		require.Zero(t, first.ahead)
		require.EqualValues(t, 1, second.ahead)
		for _, again := range []string{"", first.score, "1"} {
			got := l.ask(k, "b:1", again, "join")
			require.Equal(t, l.number(first.score), l.number(got.score))
			require.Zero(t, got.ahead)
		}
		require.Equal(t, []string{"b:1", "a:1"}, l.inLine())
		require.NoError(t, l.rdb.Del(t.Context(), l.line).Err())
		l.ask(k, "a:1", second.score, "join")
		require.Zero(t, l.ask(k, "b:2", first.score, "join").ahead)
		require.Equal(t, []string{"b:2", "a:1"}, l.inLine())
	})
}

// TestScripts_AnOldLeaveTakesNoNewEntry out of the line: it is late, or comes twice, and the process waits again.
func TestScripts_AnOldLeaveTakesNoNewEntry(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1")
		l.hold(k)
		l.ask(k, "a:1", "", "join")
		require.Equal(t, -1, l.leave(k, "a:1"))
		require.Empty(t, l.inLine())
		l.ask(k, "a:2", "", "join")
		l.leave(k, "a:1")
		l.leave(k, "a:1")
		require.Equal(t, []string{"a:2"}, l.inLine())
		require.EqualValues(t, 1, l.rdb.Exists(t.Context(), l.key).Val(), "it releases nothing")
	})
}

// TestScripts_OnlyWhoListensJoins: another one could not be woken.
func TestScripts_OnlyWhoListensJoins(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.hold(k)
		for _, member := range []string{"a:1", "*a:1", "foreign"} {
			for _, how := range []string{"join", "yield"} {
				got := l.ask(k, member, "", how)
				require.EqualValues(t, -1, got.ahead, member)
				require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
			}
		}
		require.Empty(t, l.inLine())
	})
}

// TestScripts_AShardedChannelIsAnother: a process that listens by SSUBSCRIBE is asked for, and woken, there. Neither miniredis nor the user of
// the documented rule without a Cluster can do so.
func TestScripts_AShardedChannelIsAnother(t *testing.T) {
	t.Parallel()
	kindsOn(t, redistest.Redis(t).Client(t), func(t *testing.T, l *lineScripts, k lineKind) {
		messages := l.listen("*a:1")
		l.listen("b:1")
		l.hold(k)
		require.EqualValues(t, -1, l.ask(k, "a:1", "", "join").ahead)
		require.EqualValues(t, -1, l.ask(k, "*b:1", "", "join").ahead)
		require.Zero(t, l.ask(k, "*a:1", "", "join").ahead)
		require.EqualValues(t, 1, l.ask(k, "b:1", "", "join").ahead)
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "*a:1", l.hears(messages))
		require.Equal(t, []string{"b:1"}, l.inLine())
	})
}

// TestScripts_ALineExpires a minute after a join or a poll; what is more than half a minute off is not set again.
func TestScripts_ALineExpires(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		l.listen("a:1")
		l.hold(k)
		for _, before := range []time.Duration{0, 20 * time.Second, 45 * time.Second} {
			if before > 0 {
				require.NoError(t, l.rdb.PExpire(ctx, l.line, before).Err())
			}
			l.ask(k, "a:1", "", "join")
			left := l.rdb.PTTL(ctx, l.line).Val()
			if before < 30*time.Second {
				require.Greater(t, left, 50*time.Second)
				require.LessOrEqual(t, left, time.Minute)
			} else {
				require.LessOrEqual(t, left, before)
			}
		}
		require.NoError(t, l.rdb.Persist(ctx, l.line).Err())
		l.ask(k, "a:1", "", "yield")
		require.Positive(t, l.rdb.PTTL(ctx, l.line).Val())
	})
}

// TestScripts_AReleaseWakesTheFirst, which is out of the line then, and no other one.
func TestScripts_AReleaseWakesTheFirst(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		a, b := l.listen("a:1"), l.listen("b:1")
		l.hold(k)
		l.ask(k, "b:1", "", "join")
		l.ask(k, "a:1", "", "join")
		require.Equal(t, -1, l.release(k, "unknown"))
		require.Equal(t, []string{"b:1", "a:1"}, l.inLine())
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "b:1", l.hears(b))
		require.Equal(t, "60000", l.hears(a), "it is told that it is the first: b may be stopped")
		require.Equal(t, []string{"a:1"}, l.inLine())
		require.Nil(t, l.ask(k, "b:1", "", "join"))
		left, err := strconv.Atoi(l.hears(a))
		require.NoError(t, err, "and when b's TTL ends")
		require.InDelta(t, 60_000, left, 30_000)
		require.Equal(t, 1, l.release(k, "b:1"))
		require.Equal(t, "a:1", l.hears(a))
		require.Nil(t, l.ask(k, "a:1", "", "join"))
		require.Equal(t, 0, l.release(k, "a:1"))
		require.Empty(t, l.inLine())
	})
}

// TestScripts_WhoIsServedIsOutOfTheLine, be it woken or not: its poll has found the lock free, or the message was lost.
func TestScripts_WhoIsServedIsOutOfTheLine(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		_, b := l.listen("a:1"), l.listen("b:1")
		l.hold(k)
		l.ask(k, "a:1", "", "join")
		l.ask(k, "b:1", "", "join")
		if k.acquire == scriptPermitAcquire { // the holder's TTL ends
			require.NoError(t, l.rdb.ZAddXX(t.Context(), l.key, redis.Z{Score: 1, Member: "token of "}).Err())
		} else {
			require.NoError(t, l.rdb.Del(t.Context(), l.key).Err())
		}
		require.Nil(t, l.ask(k, "a:1", "", "join"))
		require.Equal(t, []string{"b:1"}, l.inLine())
		left, err := strconv.Atoi(l.hears(b))
		require.NoError(t, err, "it is told that it is the first")
		require.InDelta(t, 60_000, left, 30_000)
	})
}

// TestScripts_WhoLeavesPassesItsPlaceOn: the next one is woken if the lock is free, since the one that leaves may have been, and is
// else told when the holder's TTL ends.
func TestScripts_WhoLeavesPassesItsPlaceOn(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		_, b, c := l.listen("a:1"), l.listen("b:1"), l.listen("c:1")
		l.hold(k)
		for _, member := range []string{"a:1", "b:1", "c:1"} {
			l.ask(k, member, "", "join")
		}
		l.leave(k, "a:1")
		left, err := strconv.Atoi(l.hears(b))
		require.NoError(t, err)
		require.InDelta(t, 60_000, left, 30_000)
		l.leave(k, "a:1") // it is not the first any more
		l.release(k, "unknown")

		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "b:1", l.hears(b), "and nothing before")
		require.Equal(t, "60000", l.hears(c))
		l.leave(k, "b:1") // and does not try
		require.Equal(t, "c:1", l.hears(c))
		require.Empty(t, l.inLine())
	})
}

// TestScripts_PermitsThatAreFreeAreAllTaken: more end at a time than processes are woken, and each that takes one wakes the next.
// One that takes the last says when the first of them ends.
func TestScripts_PermitsThatAreFreeAreAllTaken(t *testing.T) {
	eachLine(t, func(t *testing.T, l *lineScripts) {
		ctx, k := t.Context(), lineKind{scriptPermitAcquire, scriptPermitRelease, "3"}
		a, b, c, d := l.listen("a:1"), l.listen("b:1"), l.listen("c:1"), l.listen("d:1")
		for _, holder := range []string{"x", "y", "z"} {
			require.Nil(t, l.ask(k, holder, "", ""))
		}
		for _, member := range []string{"a:1", "b:1", "c:1", "d:1"} {
			require.NotNil(t, l.ask(k, member, "", "join"))
		}
		require.NoError(t, l.rdb.ZAdd(ctx, l.key, redis.Z{Score: 1, Member: "token of x"}, redis.Z{Score: 1, Member: "token of y"}).Err())
		require.Equal(t, 1, l.release(k, "z"))
		require.Equal(t, "a:1", l.hears(a))
		require.Equal(t, "60000", l.hears(b))
		require.Nil(t, l.ask(k, "a:1", "", "join"))
		require.Equal(t, "b:1", l.hears(b))
		require.Equal(t, "60000", l.hears(c))
		require.Nil(t, l.ask(k, "b:1", "", "join"))
		require.Equal(t, "c:1", l.hears(c))
		require.Equal(t, "60000", l.hears(d))
		end := time.Now().Add(5 * time.Second).UnixMilli()
		require.NoError(t, l.rdb.ZAddXX(ctx, l.key, redis.Z{Score: float64(end), Member: "token of a:1"}).Err())
		require.Nil(t, l.ask(k, "c:1", "", "join"))
		left, err := strconv.Atoi(l.hears(d))
		require.NoError(t, err)
		require.LessOrEqual(t, left, 10_000, "the first of them")
		require.Equal(t, []string{"d:1"}, l.inLine())
	})
}

// TestScripts_TheDeadAreSkipped sixteen at a time, so that a release stays short.
func TestScripts_TheDeadAreSkipped(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		const dead = 40
		messages := l.listen("a:1")
		for i := range dead {
			l.put(fmt.Sprintf("dead%d:1", i), float64(i))
		}
		l.hold(k)
		l.ask(k, "a:1", "", "join")
		for _, left := range []int{25, 9} {
			require.Equal(t, 0, l.release(k, ""))
			require.Len(t, l.inLine(), left)
			l.hold(k)
		}
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1", l.hears(messages))
		require.Empty(t, l.inLine())
	})
}

// TestScripts_ALineOfAnotherTypeCostsNoLock: it is a hint, and stays as it is.
func TestScripts_ALineOfAnotherTypeCostsNoLock(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		l.listen("a:1")
		for _, put := range []func() error{
			func() error { return l.rdb.Set(ctx, l.line, "foreign", time.Hour).Err() },
			func() error { return l.rdb.HSet(ctx, l.line, "a:1", "1").Err() },
			func() error { return l.rdb.RPush(ctx, l.line, "a:1").Err() },
			func() error { return l.rdb.SAdd(ctx, l.line, "a:1").Err() },
		} {
			require.NoError(t, l.rdb.Del(ctx, l.line).Err())
			require.NoError(t, put())
			before := l.rdb.Type(ctx, l.line).Val()
			require.Nil(t, l.ask(k, "b:1", "", "join"))
			for _, how := range []string{"join", "yield"} {
				got := l.ask(k, "a:1", "7", how)
				require.EqualValues(t, -1, got.ahead)
				require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
			}
			require.Equal(t, -1, l.leave(k, "a:1"))
			require.Equal(t, 0, l.release(k, "b:1"))
			require.Equal(t, -1, l.leave(k, "a:1"))
			require.Equal(t, -1, l.release(k, "b:1"))
			require.Equal(t, before, l.rdb.Type(ctx, l.line).Val())
		}
	})
}

// TestScripts_OnAFullServerLinesMoveOn: none joins, and one that asks is told how long the lock is held; a release works, and wakes
// those that were in line before. A plain acquisition is refused, also of a lock that is held: the server refuses its SET.
func TestScripts_OnAFullServerLinesMoveOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	kindsOn(t, rdb, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		a, b, _ := l.listen("a:1"), l.listen("b:1"), l.listen("c:1")
		l.hold(k)
		first := l.ask(k, "a:1", "", "join")
		l.ask(k, "b:1", "", "join")
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		defer func() { require.NoError(t, rdb.ConfigSet(context.Background(), "maxmemory", "0").Err()) }()
		hows := []string{"join", "yield"}
		if k.third == "" { // plain
			hows = hows[1:]
			err := rdb.Eval(ctx, k.acquire.Source(), k.keys(l), "token", 60_000, "", "a:1", "", "join").Err()
			require.ErrorContains(t, err, "OOM")
		}
		for _, how := range hows {
			got := l.ask(k, "c:1", "", how)
			require.EqualValues(t, -1, got.ahead)
			require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
			got = l.ask(k, "a:1", "", how)
			require.Equal(t, first.score, got.score, "it is in line")
		}
		require.Equal(t, []string{"a:1", "b:1"}, l.inLine())
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1", l.hears(a))
		require.Equal(t, "60000", l.hears(b))
		l.leave(k, "a:1") // refused, it gives up
		require.Equal(t, "b:1", l.hears(b))
		require.Empty(t, l.inLine())
	})
}
