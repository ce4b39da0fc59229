package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
)

func TestJanitor_ReleasesThreeTimesOnceItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor, 15*time.Second)
		start := time.Now()
		j.Add(Release{"token", script.Request([]any{"key"}, "token")})
		time.Sleep(time.Second + time.Millisecond)
		require.Len(t, s.pipelines(), 5, "every 250ms while there is no answer")
		s.mu.Lock()
		s.answer = succeed
		s.mu.Unlock()
		executor.Close(t.Context()) // waits until nothing is left
		require.Equal(t, 1250*time.Millisecond+releaseAgain+15*time.Second, time.Since(start))
		require.Len(t, s.pipelines(), 8)
		require.Zero(t, j.Len())
	})
}

func TestJanitor_GivesUpOnADeadServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor, 15*time.Second)
		start := time.Now()
		j.Add(Release{"token", script.Request([]any{"key"}, "token")})
		executor.Close(t.Context())
		require.Equal(t, releaseFor, time.Since(start))
	})
}

func TestJanitor_CloseSendsWhatIsLeftOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor, 15*time.Second)
		for _, token := range []string{"a", "b", "c"} {
			j.Add(Release{token, script.Request([]any{"key"}, token)})
		}
		synctest.Wait()
		j.Close()
		j.Add(Release{"d", script.Request([]any{"key"}, "d")})
		executor.Close(t.Context())
		sum := 0
		for _, n := range s.pipelines() {
			sum += n
		}
		require.Equal(t, 3+3+1, sum)
	})
}

// releases returns the releases of some tokens on one server of a cluster.
func releases(server string, n int) []Release {
	some := make([]Release, n)
	for i := range some {
		key := fmt.Sprint(server, i)
		some[i] = Release{"token of " + key, script.Request([]any{key}, "token")}
	}
	return some
}

// TestJanitor_ReleasesManyInOrder: what waits longest goes first, in pipelines that follow each
// other, and what had no answer goes again.
func TestJanitor_ReleasesManyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		underWay, most, turn := 0, 0, map[string][]int{}
		c := newCluster(succeed)
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
		j := NewJanitor(executor, 15*time.Second)
		j.Add(releases("a", 2000)...)
		time.Sleep(5 * time.Millisecond)
		j.Add(releases("a1000000", 500)...) // later, and during the first pipeline
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
		c := newCluster(succeed)
		c.slow["a"] = 5 * time.Second
		sent := map[byte]int{}
		c.sent = func(keys []string) { sent[keys[0][0]] += len(keys) }
		executor := redisexec.New(c)
		j := NewJanitor(executor, 15*time.Second)
		j.Add(append(releases("a", 1000), releases("b", 1000)...)...)
		time.Sleep(4 * time.Second)
		c.server.mu.Lock()
		require.Equal(t, map[byte]int{'a': maxReleases, 'b': 2000}, sent, "b twice by now")
		c.server.mu.Unlock()
		j.Close()
		executor.Close(t.Context())
		require.Equal(t, map[byte]int{'a': maxReleases + 1000, 'b': 3000}, sent, "once more at the end")
	})
}

// TestJanitor_ReleasesAtOnceBesideARetry: what is added does not wait for what is to be repeated.
func TestJanitor_ReleasesAtOnceBesideARetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: fail}
		executor := redisexec.New(s)
		j := NewJanitor(executor, 15*time.Second)
		j.Add(releases("a", 1)...)
		time.Sleep(10 * time.Millisecond)
		require.Len(t, s.pipelines(), 1)
		j.Add(releases("b", 1)...)
		synctest.Wait()
		require.Len(t, s.pipelines(), 2)
		time.Sleep(releaseRetry - time.Millisecond)
		require.Len(t, s.pipelines(), 3, "the first one's retry")
		j.Close()
		executor.Close(t.Context())
	})
}

// TestJanitor_ATokenMayBeAddedAgain while its release waits, or is under way: it is released as
// often as if it were new.
func TestJanitor_ATokenMayBeAddedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: time.Second}
		executor := redisexec.New(s)
		j := NewJanitor(executor, 15*time.Second)
		start := time.Now()
		j.Add(releases("a", 1)...)
		time.Sleep(500 * time.Millisecond)
		j.Add(releases("a", 1)...) // under way
		j.Add(releases("a", 1)...) // waits
		require.Equal(t, 1, j.Len())
		executor.Close(t.Context())
		require.Zero(t, j.Len())
		require.Equal(t, []int{1, 1, 1, 1}, s.pipelines())
		require.Equal(t, 4*time.Second+releaseAgain+15*time.Second, time.Since(start))
	})
}

// TestJanitor_WorkIsProportionalToTheReleases counts how often the janitor asks which server keeps a key:
// once when it is added, and once after each pipeline. A scan of all at each turn would be
// quadratic.
func TestJanitor_WorkIsProportionalToTheReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		c := newCluster(succeed)
		c.delay = time.Millisecond
		executor := redisexec.New(c)
		j := NewJanitor(executor, 15*time.Second)
		turns := 0
		j.loop = background.NewLoop(executor.Go, func() time.Duration {
			turns++
			return j.turn()
		})
		j.Add(releases("a", n)...)
		executor.Close(t.Context())
		require.Zero(t, j.Len())
		require.Equal(t, 4*n, c.asked)
		require.LessOrEqual(t, turns, 3*len(c.pipelines()))
		require.Empty(t, j.backlogs)
	})
}
