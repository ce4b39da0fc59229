package scripts

import (
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
	"github.com/sluice-go/sluice/internal/store"
)

// lineScripts runs the scripts that join and move the line of one lock, as processes of whose
// library only these are left.
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

// eachKind runs a test of the line of plain and fenced locks, and of two permits, one of them held.
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
			if k.acquire == scripts.OfPermits.Acquire {
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
	"plain":   {scripts.OfLocks.Acquire, scripts.OfLocks.Release, ""},
	"fenced":  {scripts.OfLocks.Acquire, scripts.OfLocks.Release, "1000"},
	"permits": {scripts.OfPermits.Acquire, scripts.OfPermits.Release, "2"},
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

// ask has a member try for a minute or, if how is "join", only join. It is nil if it has the lock.
func (l *lineScripts) ask(k lineKind, member, score, how string) *placed {
	l.Helper()
	reply, err := l.rdb.Eval(l.Context(), k.acquire.Source(), k.keys(l), "token of "+member, 60_000, k.third, member, score, how).Result()
	require.NoError(l, err)
	list, ok := reply.([]any)
	if !ok {
		_, err := store.DecodeAcquired(reply)
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

// release releases what a member holds, and leave takes it out of the line. They return how many
// were woken, -1 if nothing was released.
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
	var reply *redis.Cmd
	_, err := l.rdb.Pipelined(l.Context(), func(p redis.Pipeliner) error {
		reply = p.Eval(l.Context(), k.release.Source(), k.keys(l), token, member, 0, "")
		p.Eval(l.Context(), keepReservations, []string{l.key})
		return nil
	})
	require.NoError(l, err)
	n, err := reply.Int()
	require.NoError(l, err)
	return n - 1
}

// keepReservations has what a release reserves last for a minute, whatever it says and however busy
// the machine is. It returns for how many ms, at the most, something was reserved.
const keepReservations = `
local kind, left, time = redis.call('TYPE', KEYS[1]), 0, redis.call('TIME')
kind = kind.ok or kind -- as miniredis answers
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if kind == 'string' and string.byte(redis.call('GET', KEYS[1]) or '') == 62 then
  left = redis.call('PTTL', KEYS[1])
  redis.call('PEXPIRE', KEYS[1], 60000)
elseif kind == 'zset' then
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if string.byte(member) == 62 then
      left = math.max(left, tonumber(redis.call('ZSCORE', KEYS[1], member)) - now)
      redis.call('PEXPIRE', KEYS[1], 61000) -- first: so a full server accepts the next write
      redis.call('ZADD', KEYS[1], string.format('%.0f', now + 60000), member)
    end
  end
end
return left`

// reserved returns the members for which the lock, or a permit, is reserved.
func (l *lineScripts) reserved() (members []string) {
	l.Helper()
	held := []string{l.rdb.Get(l.Context(), l.key).Val()}
	if held[0] == "" {
		held = l.rdb.ZRange(l.Context(), l.key, 0, -1).Val()
	}
	for _, token := range held {
		if member, ok := strings.CutPrefix(token, ">"); ok {
			members = append(members, member)
		}
	}
	return members
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

// TestScripts_ScoresOfALineRise: a process joins behind the last, also if the server's clock was
// set back, by a day at most. What is further ahead is foreign, and ignored.
func TestScripts_ScoresOfALineRise(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		for _, process := range []string{"a:1:500", "b:1:500", "c:1:500", "d:1:500"} {
			l.listen(process)
		}
		l.hold(k)
		now, err := l.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		first := l.ask(k, "a:1:500", "", "join")
		require.Zero(t, first.ahead)
		require.InDelta(t, float64(now.UnixMicro()), l.number(first.score), 60e6)
		ahead := float64(now.UnixMicro()) + day - 60e6
		l.put("later:1", ahead)
		second := l.ask(k, "b:1:500", "", "join")
		require.Equal(t, ahead+1, l.number(second.score))
		require.EqualValues(t, 2, second.ahead)
		require.Equal(t, ahead+2, l.number(l.ask(k, "c:1:500", "", "join").score))
		require.NoError(t, l.rdb.ZRem(t.Context(), l.line, "later:1", "b:1:500", "c:1:500").Err())

		l.put("foreign", ahead+day)
		third := l.ask(k, "d:1:500", "", "join")
		require.EqualValues(t, 1, third.ahead)
		require.InDelta(t, float64(now.UnixMicro()), l.number(third.score), 60e6)
		require.Equal(t, []string{"a:1:500", "d:1:500", "foreign"}, l.inLine())
	})
}

// TestScripts_AClockThatIsSetBack: those who join then stand behind the others.
func TestScripts_AClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	l, k := newLineScripts(t, rdb), lineKind{scripts.OfLocks.Acquire, scripts.OfLocks.Release, ""}
	start := time.Now()
	m.SetTime(start)
	l.hold(k)
	for i := range 5 {
		member := fmt.Sprintf("%c:1:500", 'e'-i) // by name they would stand the other way round
		l.listen(member)
		require.EqualValues(t, i, l.ask(k, member, "", "join").ahead)
		m.SetTime(start.Add(-time.Duration(i) * time.Hour))
	}
	require.Equal(t, []string{"e:1:500", "d:1:500", "c:1:500", "b:1:500", "a:1:500"}, l.inLine())
}

// TestScripts_AProcessStandsInLineOnce: with its first score, however often it asks. Out of the
// line it comes back to its old place.
func TestScripts_AProcessStandsInLineOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("b:1:500")
		l.listen("a:1:500")
		l.hold(k)
		first := l.ask(k, "b:1:500", "", "join")
		second := l.ask(k, "a:1:500", "", "join")
		require.Zero(t, first.ahead)
		require.EqualValues(t, 1, second.ahead)
		for _, again := range []string{"", first.score, "1"} {
			got := l.ask(k, "b:1:500", again, "join")
			require.Equal(t, l.number(first.score), l.number(got.score))
			require.Zero(t, got.ahead)
		}
		require.Equal(t, []string{"b:1:500", "a:1:500"}, l.inLine())
		require.NoError(t, l.rdb.Del(t.Context(), l.line).Err())
		l.ask(k, "a:1:500", second.score, "join")
		require.Zero(t, l.ask(k, "b:2:500", first.score, "join").ahead)
		require.Equal(t, []string{"b:2:500", "a:1:500"}, l.inLine())
	})
}

// TestScripts_AnOldLeaveTakesNoNewEntry out of the line: it is late, or comes twice, and the
// process waits again.
func TestScripts_AnOldLeaveTakesNoNewEntry(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.listen("a:1:500")
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		require.Equal(t, -1, l.leave(k, "a:1:500"))
		require.Empty(t, l.inLine())
		l.ask(k, "a:2:500", "", "join")
		l.leave(k, "a:1:500")
		l.leave(k, "a:1:500")
		require.Equal(t, []string{"a:2:500"}, l.inLine())
		require.EqualValues(t, 1, l.rdb.Exists(t.Context(), l.key).Val(), "it releases nothing")
	})
}

// TestScripts_OnlyWhoListensJoins: another one could not be woken.
func TestScripts_OnlyWhoListensJoins(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		l.hold(k)
		for _, member := range []string{"a:1:500", "*a:1:500", "foreign"} {
			got := l.ask(k, member, "", "join")
			if member[0] == '*' { // which some servers cannot say, or deny
				require.Negative(t, got.ahead)
			} else {
				require.EqualValues(t, store.NotListening, got.ahead, member)
			}
			require.InDelta(t, time.Minute, got.left, float64(50*time.Second))
		}
		require.Empty(t, l.inLine())
	})
}

// TestScripts_AShardedChannelIsAnother: a process that listens by SSUBSCRIBE is asked for, and
// woken, there. Neither miniredis nor the user of the documented rule without a Cluster can do so.
func TestScripts_AShardedChannelIsAnother(t *testing.T) {
	t.Parallel()
	kindsOn(t, redistest.Redis(t).Client(t), func(t *testing.T, l *lineScripts, k lineKind) {
		messages := l.listen("*a:1:500")
		l.listen("b:1:500")
		l.hold(k)
		require.EqualValues(t, store.NotListening, l.ask(k, "a:1:500", "", "join").ahead)
		require.EqualValues(t, store.NotListening, l.ask(k, "*b:1:500", "", "join").ahead)
		require.Zero(t, l.ask(k, "*a:1:500", "", "join").ahead)
		require.EqualValues(t, 1, l.ask(k, "b:1:500", "", "join").ahead)
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "*a:1:500", l.hears(messages))
		require.Equal(t, []string{"b:1:500"}, l.inLine())
	})
}

// TestScripts_ALineExpires a minute after a join or a poll, and is set again in half a minute.
func TestScripts_ALineExpires(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		ctx := t.Context()
		l.listen("a:1:500")
		l.hold(k)
		for _, before := range []time.Duration{0, 20 * time.Second, 45 * time.Second} {
			if before > 0 {
				require.NoError(t, l.rdb.PExpire(ctx, l.line, before).Err())
			}
			l.ask(k, "a:1:500", "", "join")
			left := l.rdb.PTTL(ctx, l.line).Val()
			if before < 30*time.Second {
				require.Greater(t, left, 50*time.Second)
				require.LessOrEqual(t, left, time.Minute)
			} else {
				require.LessOrEqual(t, left, before)
			}
		}
		require.NoError(t, l.rdb.Persist(ctx, l.line).Err())
		l.ask(k, "a:1:500", "", "join")
		require.Positive(t, l.rdb.PTTL(ctx, l.line).Val())
	})
}

// TestScripts_WhoIsServedIsOutOfTheLine, be it woken, or by its poll if the message was lost.
func TestScripts_WhoIsServedIsOutOfTheLine(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		_, b := l.listen("a:1:500"), l.listen("b:1:500")
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		l.ask(k, "b:1:500", "", "join")
		if k.acquire == scripts.OfPermits.Acquire { // the holder's TTL ends
			require.NoError(t, l.rdb.ZAddXX(t.Context(), l.key, redis.Z{Score: 1, Member: "token of "}).Err())
		} else {
			require.NoError(t, l.rdb.Del(t.Context(), l.key).Err())
		}
		require.Nil(t, l.ask(k, "a:1:500", "", "join"))
		require.Equal(t, []string{"b:1:500"}, l.inLine())
		left, err := strconv.Atoi(l.hears(b))
		require.NoError(t, err, "it is told that it is the first")
		require.InDelta(t, 60_000, left, 30_000)
	})
}

// TestScripts_WhoLeavesPassesItsPlaceOn: the lock goes to the next one if it is free, or reserved
// for the one that leaves; else the next one is told when the holder's TTL ends.
func TestScripts_WhoLeavesPassesItsPlaceOn(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		_, b, c := l.listen("a:1:500"), l.listen("b:1:500"), l.listen("c:1:500")
		l.hold(k)
		for _, member := range []string{"a:1:500", "b:1:500", "c:1:500"} {
			l.ask(k, member, "", "join")
		}
		l.leave(k, "a:1:500")
		left, err := strconv.Atoi(l.hears(b))
		require.NoError(t, err)
		require.InDelta(t, 60_000, left, 30_000)
		l.leave(k, "a:1:500") // it is not the first any more
		l.release(k, "unknown")

		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "b:1:500", l.hears(b), "and nothing before")
		require.Equal(t, "500", l.hears(c))
		l.leave(k, "b:2:500") // of another wait
		require.Equal(t, []string{"b:1:500"}, l.reserved())
		require.Equal(t, -1, l.leave(k, "b:1:500"), "its token held nothing")
		require.Equal(t, "c:1:500", l.hears(c))
		require.Equal(t, []string{"c:1:500"}, l.reserved())
		require.Empty(t, l.inLine())
		l.leave(k, "b:1:500") // twice
		require.Equal(t, []string{"c:1:500"}, l.reserved())
		l.leave(k, "c:1:500")
		require.Empty(t, l.reserved())
		l.hold(k)
	})
}

// TestScripts_TheDeadAreSkipped by a release, a join and a poll, a thousand at a time, so that each
// stays short.
func TestScripts_TheDeadAreSkipped(t *testing.T) {
	eachKind(t, func(t *testing.T, l *lineScripts, k lineKind) {
		messages := l.listen("a:1:500")
		l.listen("b:1:500")
		put := func(dead int) {
			members := make([]redis.Z, dead)
			for i := range members {
				members[i] = redis.Z{Score: float64(i), Member: fmt.Sprintf("dead%d:1:500", i)}
			}
			require.NoError(t, l.rdb.ZAdd(t.Context(), l.line, members...).Err())
		}
		l.hold(k)
		l.ask(k, "a:1:500", "", "join")
		put(1005)
		require.Equal(t, 0, l.release(k, ""))
		require.Len(t, l.inLine(), 6)
		l.hold(k)
		require.EqualValues(t, 1, l.ask(k, "b:1:500", "", "join").ahead, "a join")
		left, err := strconv.Atoi(l.hears(messages))
		require.NoError(t, err, "the first is told that it is")
		require.InDelta(t, 60_000, left, 30_000)
		put(999)
		require.Zero(t, l.ask(k, "a:1:500", "1", "join").ahead, "a poll")
		require.Equal(t, []string{"a:1:500", "b:1:500"}, l.inLine())
		l.hears(messages)
		put(5)
		require.Equal(t, 1, l.release(k, ""))
		require.Equal(t, "a:1:500", l.hears(messages))
		require.Equal(t, []string{"b:1:500"}, l.inLine())
	})
}

// TestScripts_ALineOfAnotherTypeCostsNoLock: it is a hint, and stays as it is.
// TestScripts_OnAFullServerLinesMoveOn: none joins, and one that asks is told how long the lock is
// held; a release works, and wakes those that were in line before.
