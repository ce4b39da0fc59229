package distributed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// The role of a worker on several queues. Its settings are the addresses of a Cluster's nodes, the
// name of the queues, their number, the journal, and how long its handler takes at most.
var _ = systest.Role("journal-worker", workJournal)

// place opens what the settings of a process name.
func place(settings string) (qs sluice.Queues, j journal, nap time.Duration) {
	var addrs, name, path string
	var n int
	_, err := fmt.Sscan(settings, &addrs, &name, &n, &path, &nap)
	if err == nil {
		j, err = openJournal(path)
	}
	if err == nil {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(addrs, ",")})
		qs, err = sluice.NewQueues(rdb, name, n, sluice.WithMaxAttempts(-1))
	}
	if err == nil {
		_, err = qs[0].Stats(context.Background()) // so that it is connected
	}
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	return qs, j, nap
}

// untilStdinEnds returns a context that ends with the standard input.
func untilStdinEnds() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx
}

// workJournal is a worker, from the first line that it reads on.
func workJournal(settings string) {
	qs, j, nap := place(settings)
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return
	}
	w := &sluice.Worker{Lease: journalLease, Handler: func(ctx context.Context, e sluice.Entry) error {
		task, err := strconv.ParseInt(e.ID, 10, 64)
		if err != nil {
			return err
		}
		j.add(begun, task, lease.ReceiptIn(ctx))
		if nap > 0 {
			time.Sleep(rand.N(nap)) // the work: kills come in the midst of some
		}
		j.add(done, task, lease.ReceiptIn(ctx))
		return nil
	}}
	pool := &sluice.Pool{Workers: qs.Workers(w), Concurrency: 64}
	if err := pool.Run(untilStdinEnds()); err != nil {
		panic(err)
	}
}

// crew is processes on queues of a Cluster, and their journals.
type crew struct {
	*testing.T
	cluster *redistest.Cluster
	qs      sluice.Queues
	rdb     redis.UniversalClient
	addrs   string
	name    string
	nap     time.Duration
	dir     string

	members []*member // all that there ever were
	workers []*member // those that run
	wanted  int       // workers
	atWork  bool
	seen    witness
	kills   int // of workers
}

// member is a process of a crew.
type member struct {
	*systest.Child
	path   string
	killed time.Time
}

func newCrew(t *testing.T, c *redistest.Cluster, name string, queues int) *crew {
	t.Helper()
	w := &crew{T: t, cluster: c, rdb: c.Client(t), name: name, dir: t.TempDir()}
	w.seen.enqueued = map[int64]bool{}
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
	}
	w.addrs = strings.Join(addrs, ",")
	var err error
	w.qs, err = sluice.NewQueues(w.rdb, w.name, queues, sluice.WithMaxAttempts(-1))
	require.NoError(t, err)
	return w
}

// start starts a worker, and waits until it is connected.
func (c *crew) start() *member {
	c.Helper()
	path := filepath.Join(c.dir, strconv.Itoa(len(c.members)))
	m := &member{Child: systest.StartChild(c.T, "journal-worker", c.addrs, c.name, len(c.qs), path, int64(c.nap)), path: path}
	c.members = append(c.members, m)
	var word string
	m.Answer(&word)
	require.Equal(c, "ready", word)
	return m
}

// hire starts workers. They wait to be told to begin.
func (c *crew) hire(n int) {
	c.Helper()
	c.wanted = n
	for range n {
		c.workers = append(c.workers, c.start())
	}
}

// begin has the workers begin.
func (c *crew) begin() {
	c.Helper()
	c.atWork = true
	for _, m := range c.workers {
		m.Tell("begin")
	}
}

// killOne kills a worker by SIGKILL.
func (c *crew) killOne() {
	c.Helper()
	i := rand.N(len(c.workers))
	c.workers[i].killed = time.Now()
	c.workers[i].Kill()
	c.workers = slices.Delete(c.workers, i, i+1)
	c.kills++
}

// replace starts as many workers as were killed.
func (c *crew) replace() {
	c.Helper()
	for len(c.workers) < c.wanted {
		m := c.start()
		m.Tell("begin")
		c.workers = append(c.workers, m)
	}
}

// fill enqueues n tasks that become due within a time, after so much.
func (c *crew) fill(n int, after, within time.Duration) {
	c.Helper()
	const size = 5000
	from := time.Now().Add(after)
	first := len(c.seen.enqueued)
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for at := part * size; at < n; at += 4 * size {
				tasks := make([]sluice.Task, min(size, n-at))
				for i := range tasks {
					tasks[i].ID = strconv.Itoa(first + at + i)
					tasks[i].At = from
					if within > 0 {
						tasks[i].At = from.Add(rand.N(within))
					}
				}
				_, err := c.qs.EnqueueBatch(c.Context(), tasks)
				for !c.atWork && errors.Is(err, sluice.ErrUnknown) { // on a busy machine; no task has been done yet
					_, err = c.qs.EnqueueBatch(c.Context(), tasks)
				}
				if err != nil {
					c.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.False(c, c.Failed())
	for i := range n {
		c.seen.enqueued[int64(first+i)] = true
	}
}

// left is how many tasks have not been finished.
func (c *crew) left() (n int64) {
	c.Helper()
	for _, q := range c.qs {
		s, err := q.Stats(c.Context())
		require.NoError(c, err)
		require.Zero(c, s.Dead)
		n += s.Due + s.Scheduled + s.Leased
	}
	return n
}

// awaitDrained waits until all tasks have been finished.
func (c *crew) awaitDrained() {
	c.Helper()
	for last := c.left(); last > 0; {
		left := last
		require.Eventually(c, func() bool { left = c.left(); return left < last }, time.Minute, 20*time.Millisecond, "nothing is done about %d tasks", last)
		last = left
	}
}

// primary returns the server that has a key, once it answers.
func (c *crew) primary(key string) *redistest.Server {
	c.Helper()
	primary := c.cluster.Primary(key)
	require.NotNil(c, primary, "no primary answers")
	return primary
}

// dismiss has the workers end, and returns what their processors have spent.
func (c *crew) dismiss() (cpu time.Duration) {
	c.Helper()
	for _, m := range c.workers {
		require.NoError(c, m.Close())
		cpu += m.CPU()
	}
	c.workers = nil
	return cpu
}

// struckAtWork says whether a process that was killed had begun a task which it has not done.
func (c *crew) struckAtWork() bool {
	c.Helper()
	for _, m := range c.members {
		if m.killed.IsZero() {
			continue
		}
		content, err := os.ReadFile(m.path)
		require.NoError(c, err)
		notes, err := decodeNotes(content)
		require.NoError(c, err)
		open := 0
		for _, n := range notes {
			open += map[int64]int{begun: 1, done: -1}[n.Kind]
		}
		if open > 0 {
			return true
		}
	}
	return false
}

// check reads all journals. It requires that each task was done, none handed out again before its
// lease had ended, and none of a process that lived.
func (c *crew) check() verdict {
	c.Helper()
	for _, m := range c.members {
		content, err := os.ReadFile(m.path)
		require.NoError(c, err)
		notes, err := decodeNotes(content)
		require.NoError(c, err)
		c.seen.add(notes, m.killed)
	}
	v := c.seen.check()
	require.Empty(c, v.wrong[:min(len(v.wrong), 20)], "%d in all", len(v.wrong))
	return v
}
