package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// late is the release of a token that may yet take its key, which then lives for so long.
func late(token string, life time.Duration) Release {
	return Release{Token: token, Request: script.Request([]any{"key"}, token), Life: life, Late: true}
}

func notFound(cmd redis.Cmder) { cmd.(interface{ SetVal(any) }).SetVal(int64(0)) }

// TestJanitor_ReleasesMoreAndMoreRarely: once an answer has come, after half a second and then
// after pauses of which each is twice as long, until one is longer than the key would live.
func TestJanitor_ReleasesMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor)
		j.Add(late("token", 24*time.Hour))
		time.Sleep(time.Second + time.Millisecond)
		require.Len(t, s.pipelines(), 5, "every 250ms while there is no answer")
		s.mu.Lock()
		s.answer = notFound
		s.mu.Unlock()
		start := time.Now().Add(249 * time.Millisecond) // of the first answer
		executor.Close(t.Context())                     // waits until nothing is left
		took := time.Since(start)
		require.Zero(t, j.Len())
		require.Greater(t, took, 2*24*time.Hour-releaseAgain)
		require.LessOrEqual(t, took, 4*24*time.Hour, "the last pause is the first that is as long as the key lives")
		require.Len(t, s.pipelines(), 5+1+19, "0.5, 1, 2 … 131,072 seconds")
		require.Equal(t, releaseAgain*(1<<19-1), took)
	})
}

// TestJanitor_ReleasesOnceWhatCannotComeAgain: what was released has come, and what is not Late has
// come before.
func TestJanitor_ReleasesOnceWhatCannotComeAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late   bool
		answer func(redis.Cmder)
	}{"released": {true, succeed}, "not late": {false, notFound}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{answer: test.answer}
				executor := redisexec.New(s)
				j := NewJanitor(executor)
				r := late("token", time.Hour)
				r.Late = test.late
				j.Add(r)
				executor.Close(t.Context())
				require.Len(t, s.pipelines(), 1)
				require.Zero(t, j.Len())
			})
		})
	}
}

// TestJanitor_GivesUpOnADeadServer when the key cannot live any more, but not within two minutes.
func TestJanitor_GivesUpOnADeadServer(t *testing.T) {
	t.Parallel()
	for _, life := range []time.Duration{time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{answer: fail}
			executor := redisexec.New(s)
			j := NewJanitor(executor)
			start := time.Now()
			j.Add(late("token", life))
			executor.Close(t.Context())
			require.Equal(t, max(life, releaseFor), time.Since(start))
		})
	}
}

// TestJanitor_ManyCostADeadServerNoMore: one pipeline every 250ms, however many wait, and when the
// server is back one at a time. Each is released in order, nine times in half a minute.
func TestJanitor_ManyCostADeadServerNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor)
		for i := range n {
			j.Add(late(fmt.Sprint(i), 30*time.Second))
		}
		time.Sleep(time.Minute)
		require.InDelta(t, 4*60, len(s.pipelines()), 2)
		s.mu.Lock()
		s.answer, s.sizes, s.delay = notFound, nil, time.Millisecond
		s.mu.Unlock()
		time.Sleep(350 * time.Millisecond)
		require.GreaterOrEqual(t, len(s.pipelines()), n/maxReleases, "all are released at once")
		executor.Close(t.Context())
		require.Len(t, s.pipelines(), 8*n/maxReleases)
		require.Zero(t, j.Len())
	})
}

// TestJanitor_RemembersSoManyAtMost: of what may come late. What is to be released for sure is
// kept.
func TestJanitor_RemembersSoManyAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		executor := redisexec.New(&server{answer: fail})
		j := NewJanitor(executor)
		for i := range maxLate + 1000 {
			j.Add(late(fmt.Sprint(i), time.Hour))
		}
		require.Equal(t, maxLate, j.Len())
		for i := range 1000 {
			j.Add(Release{Token: i, Request: script.Request([]any{"key"}, i)})
		}
		require.Equal(t, maxLate+1000, j.Len())
		j.Close()
		executor.Close(t.Context())
	})
}

func TestJanitor_CloseSendsWhatIsLeftOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor)
		addAll(j, late("a", time.Hour), late("b", time.Hour), late("c", time.Hour)) // in one pipeline
		synctest.Wait()
		j.Close()
		j.Add(late("d", time.Hour))
		executor.Close(t.Context())
		sum := 0
		for _, n := range s.pipelines() {
			sum += n
		}
		require.Equal(t, 3+3+1, sum)
	})
}

// thrice is the life of a key that is released three times, if it is not there.
const thrice = releaseAgain + time.Millisecond

// releases returns the releases of some tokens on one server of a cluster.
func releases(server string, n int) []Release {
	some := make([]Release, n)
	for i := range some {
		key := fmt.Sprint(server, i)
		some[i] = late("token of "+key, thrice)
		some[i].Request = script.Request([]any{key}, "token")
	}
	return some
}

// addAll adds releases at the same moment: before a loop takes its next turn.
func addAll(j *Janitor, releases ...Release) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range releases {
		j.add(r, j.executor.NodeOf(r.Request.Key()))
	}
}

// TestJanitor_ReleasesManyInOrder: what waits longest goes first, in pipelines that follow each
// other, and what had no answer goes again.
func TestJanitor_ReleasesManyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		underWay, most, turn := 0, 0, map[string][]int{}
		c := newCluster(notFound)
		c.delay = 10 * time.Millisecond
		c.sent = func(keys []string) {
			underWay++
			most = max(most, underWay)
			time.AfterFunc(9*time.Millisecond, func() {
				c.server.mu.Lock()
				defer c.server.mu.Unlock()
				underWay--
			})
			for _, key := range keys {
				turn[key] = append(turn[key], len(c.sizes))
			}
		}
		executor := redisexec.New(c)
		j := NewJanitor(executor)
		addAll(j, releases("a", 2000)...)
		time.Sleep(5 * time.Millisecond)
		addAll(j, releases("a1000000", 500)...) // later, and during the first pipeline
		executor.Close(t.Context())
		require.Zero(t, j.Len())
		require.Equal(t, 1, most, "pipelines at a time")
		require.Len(t, c.pipelines(), 3*(2000+500)/maxReleases)
		for _, r := range releases("a", 2000) {
			times := turn[r.Request.Key().(string)]
			require.Len(t, times, 3)
			require.LessOrEqual(t, times[0], 2000/maxReleases)
		}
		for _, r := range releases("a1000000", 500) {
			require.Len(t, turn[r.Request.Key().(string)], 3)
		}
	})
}

// TestJanitor_ServersAreApart: one that hangs has one pipeline at a time, and costs the others no
// time.
func TestJanitor_ServersAreApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(notFound)
		c.slow["a"] = 5 * time.Second
		sent := map[byte]int{}
		c.sent = func(keys []string) { sent[keys[0][0]] += len(keys) }
		executor := redisexec.New(c)
		j := NewJanitor(executor)
		addAll(j, append(releases("a", 1000), releases("b", 1000)...)...)
		time.Sleep(4 * time.Second)
		c.server.mu.Lock()
		require.Equal(t, map[byte]int{'a': maxReleases, 'b': 3000}, sent, "b three times by now")
		c.server.mu.Unlock()
		j.Close()
		executor.Close(t.Context())
		require.Equal(t, map[byte]int{'a': maxReleases + 1000, 'b': 3000}, sent, "what is left once more")
	})
}

// TestJanitor_WaitsForAServerThatDidNotAnswer: what is added goes with what is to be repeated.
func TestJanitor_WaitsForAServerThatDidNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor)
		addAll(j, releases("a", 1)...)
		time.Sleep(10 * time.Millisecond)
		addAll(j, releases("b", 1)...)
		time.Sleep(releaseRetry - 11*time.Millisecond)
		require.Equal(t, []int{1}, s.pipelines())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, []int{1, 2}, s.pipelines())
		j.Close()
		executor.Close(t.Context())
	})
}

// TestJanitor_ATokenMayBeAddedAgain while its release waits, or is under way: it is released as
// often as if it were new.
func TestJanitor_ATokenMayBeAddedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: notFound, delay: time.Second}
		executor := redisexec.New(s)
		j := NewJanitor(executor)
		start := time.Now()
		addAll(j, releases("a", 1)...)
		time.Sleep(500 * time.Millisecond)
		addAll(j, releases("a", 1)...) // under way
		addAll(j, releases("a", 1)...) // waits
		require.Equal(t, 1, j.Len())
		executor.Close(t.Context())
		require.Zero(t, j.Len())
		require.Equal(t, []int{1, 1, 1, 1}, s.pipelines())
		require.Equal(t, 4*time.Second+3*releaseAgain, time.Since(start))
	})
}

// TestJanitor_WorkIsProportionalToTheReleases counts how often the janitor asks which server keeps
// a key: once when it is added, and once after each pipeline. A scan of all at each turn would be
// quadratic.
func TestJanitor_WorkIsProportionalToTheReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		c := newCluster(notFound)
		c.delay = time.Millisecond
		executor := redisexec.New(c)
		j := NewJanitor(executor)
		addAll(j, releases("a", n)...)
		executor.Close(t.Context())
		require.Zero(t, j.Len())
		require.Equal(t, 4*n, c.asked)
		require.Empty(t, j.backlogs)
	})
}
