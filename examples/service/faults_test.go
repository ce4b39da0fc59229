//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/service/shop"
	"github.com/sluice-go/sluice/internal/redistest"
)

// programEnv makes this test binary run the service, with the flags that it holds.
const programEnv = "SERVICE_PROGRAM"

func TestMain(m *testing.M) {
	if flags, program := os.LookupEnv(programEnv); program {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // until the test dies
			os.Exit(3)
		}()
		os.Args = append(os.Args[:1], strings.Split(flags, "\n")...)
		main()
		os.Exit(0)
	}
	redistest.Main(m)
}

// fleet is several processes of the service.
type fleet struct {
	t         *testing.T
	flags     []string
	processes []*redistest.Child

	mu   sync.Mutex // guards what follows
	urls []string
}

// start starts a process in place i, and waits until it serves.
func (f *fleet) start(i int) {
	p, err := redistest.StartChild(f.t.Context(), os.Stderr, programEnv+"="+strings.Join(f.flags, "\n"))
	require.NoError(f.t, err)
	url, err := p.Stdout.ReadString('\n')
	require.NoError(f.t, err)
	f.processes[i] = p
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[i] = strings.TrimSpace(url)
}

// post asks any of the processes until one answers, and returns the answer and how often it asked.
func (f *fleet) post(ctx context.Context, path string, body []byte) (status, asked int, text string) {
	for asked = 1; ctx.Err() == nil; asked++ {
		f.mu.Lock()
		url := f.urls[rand.IntN(len(f.urls))]
		f.mu.Unlock()
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		status, text, err := post(try, url+path, body)
		cancel()
		if err == nil && status != http.StatusServiceUnavailable {
			return status, asked, text
		}
		pause(ctx, 50*time.Millisecond)
	}
	return 0, asked, ""
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

const (
	buyers, phones = 200, 50
	payIn          = 2 * time.Second
	crowd, every   = 10, 250 * time.Millisecond // so many buyers come at once, and so often
	sale           = buyers / crowd * every     // for so long they come
	leastKills     = 5
	mostKills      = 20 // then the processes have peace: a busy machine has enough to do
)

// buyer is one of those who buy. Each second one pays.
type buyer struct {
	order        string
	pays         bool
	bought, paid int // the status of the answers
	text         string
}

// buy buys and, perhaps, pays. It returns how often it asked.
func (b *buyer) buy(ctx context.Context, f *fleet) (asked int) {
	b.bought, asked, b.text = f.post(ctx, "/buy?id="+b.order, nil)
	if b.bought == 200 && b.pays {
		again := 0
		b.paid, again, _ = f.post(ctx, "/pay?to=ann&id="+b.order, nil)
		asked += again
	}
	return asked
}

// partner counts what it is told. It refuses each fifth order the first time.
type partner struct {
	mu      sync.Mutex // guards what follows
	asked   map[string]int
	told    map[string]int
	refused int
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	order := r.FormValue("order")
	p.asked[order]++
	if p.asked[order] == 1 && len(p.asked)%5 == 0 {
		p.refused++
		w.Header().Set("Retry-After", "1")
		w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[p.refused%2])
		return
	}
	p.told[order]++
}

// TestService_UnderFaults: three processes sell 50 phones to 200 buyers, of whom half pay. Every
// 300ms one process is killed and replaced, and Redis is started again in the middle. Nothing is
// lost, nothing sold twice.
func TestService_UnderFaults(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	file := filepath.Join(t.TempDir(), "shop.db")
	db, err := shop.Open(t.Context(), file, phones)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	told := &partner{asked: map[string]int{}, told: map[string]int{}}
	web := httptest.NewServer(told)
	t.Cleanup(web.Close)
	f := &fleet{t: t, processes: make([]*redistest.Child, 3), urls: make([]string, 3), flags: []string{"-redis", server.Addr, "-db", file,
		"-partner", web.URL, "-web", "127.0.0.1:0", "-pay-in", payIn.String(), "-crash", "1s"}}
	for i := range f.processes {
		f.start(i)
	}
	t.Cleanup(func() {
		for _, p := range f.processes {
			p.Kill()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// The buyers come, and the faults beside them.
	began := time.Now()
	all := make([]*buyer, buyers)
	var requests sync.WaitGroup
	var asked atomic.Int64
	for i := range all {
		all[i] = &buyer{order: fmt.Sprintf("order-%03d", i), pays: i%2 == 0}
		requests.Go(func() {
			pause(ctx, time.Duration(i/crowd)*every)
			asked.Add(int64(all[i].buy(ctx, f)))
		})
	}
	for path, body := range map[string][]byte{"/thumbnail?id=good": picture(t), "/thumbnail?id=bad": []byte("bad"), "/export?id=1": nil} {
		requests.Go(func() {
			status, _, text := f.post(ctx, path, body)
			if status != 200 {
				t.Errorf("POST %s: %d %s", path, status, text)
			}
		})
	}
	answered := make(chan struct{})
	go func() { requests.Wait(); close(answered) }()
	kills := f.faults(began.Add(sale/2), server, answered)
	tookToSell := time.Since(began)

	// All that is due is done, by processes that live now.
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	s, err := NewService(db, rdb, Config{Crash: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Locker.Close() })
	var stats sluice.Stats
	for stats, err = s.stats(ctx); ctx.Err() == nil && (err != nil || stats.Due+stats.Leased > 0 || stats.Scheduled != 1); stats, err = s.stats(ctx) {
		pause(ctx, 20*time.Millisecond)
	}
	require.NoError(t, err)
	tookInAll := time.Since(began)
	for _, p := range f.processes {
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	}
	for i, p := range f.processes {
		require.NoError(t, p.Wait(), "exit status of process %d", i)
	}

	require.Equal(t, int64(1), stats.Dead)
	dead, err := s.Low.Get(t.Context(), "thumbnail:bad")
	require.NoError(t, err)
	require.Equal(t, sluice.StateDead, dead.State)
	_, err = s.Default.Get(t.Context(), "sweep")
	require.NoError(t, err, "the one that is scheduled")
	paid := requireOrders(t, db, all, told)
	stock := number(t, db, "SELECT stock FROM item")
	require.Equal(t, phones, paid+stock)
	require.Equal(t, 2, number(t, db, "SELECT count(*) FROM done WHERE id IN ('thumbnail:good', 'export:1')"))
	t.Logf("%d kills, a restart of Redis; %d orders, of which %d were paid and %d cancelled; in stock: %d of %d", kills,
		number(t, db, "SELECT count(*) FROM orders"), paid, number(t, db, "SELECT count(*) FROM orders WHERE state = 'canceled'"), stock, phones)
	t.Logf("%d buyers asked %d times; webhooks: %d, of which %d were refused and %d repeated; all answered in %v, all done in %v", buyers,
		asked.Load(), total(told.asked), told.refused, total(told.told)-paid, tookToSell.Round(time.Millisecond), tookInAll.Round(time.Millisecond))
}

// stats returns the sums of the three queues.
func (s *Service) stats(ctx context.Context) (sum sluice.Stats, err error) {
	for _, q := range []*sluice.Queue{s.Critical, s.Default, s.Low} {
		stats, err := q.Stats(ctx)
		if err != nil {
			return sum, err
		}
		sum.Due, sum.Leased, sum.Scheduled, sum.Dead = sum.Due+stats.Due, sum.Leased+stats.Leased, sum.Scheduled+stats.Scheduled, sum.Dead+stats.Dead
	}
	return sum, nil
}

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// faults kills a process every 300ms and, at a time, starts Redis again, until all are answered. It
// returns how many it killed.
func (f *fleet) faults(restart time.Time, server *redistest.Server, answered chan struct{}) (kills int) {
	restarted := false
	for tick := time.NewTicker(300 * time.Millisecond); ; {
		select {
		case <-answered:
			if kills >= leastKills && restarted {
				return kills
			}
			<-tick.C
		case <-tick.C:
		}
		if kills == mostKills {
			continue
		}
		i := kills % len(f.processes)
		f.processes[i].Kill()
		kills++
		if !restarted && time.Now().After(restart) {
			restarted = true
			require.NoError(f.t, server.Signal(syscall.SIGTERM))
			require.Eventually(f.t, func() bool {
				conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(f.t.Context(), "tcp", server.Addr)
				if err == nil {
					_ = conn.Close()
				}
				return err != nil
			}, 20*time.Second, 5*time.Millisecond)
			server.Down() // the shell that waited for it
			server.Up(f.t)
		}
		f.start(i)
	}
}

// requireOrders compares what the buyers were told with the database, and returns how many have
// paid.
func requireOrders(t *testing.T, db *shop.Shop, all []*buyer, told *partner) (paid int) {
	t.Helper()
	for _, b := range all {
		state, err := db.State(t.Context(), b.order)
		require.NoError(t, err)
		switch {
		case b.bought == 409 && b.text == shop.ErrSoldOut.Error()+"\n":
			require.Empty(t, state, b.order)
		case b.bought == 409, b.bought == 200 && !b.pays, b.paid == 409:
			require.Equal(t, "canceled", state, b.order)
		default:
			require.Equal(t, 200, b.bought, "%s: %s", b.order, b.text)
			require.Equal(t, 200, b.paid, b.order)
			require.Equal(t, "paid", state, b.order)
			require.Positive(t, told.told[b.order], b.order)
			require.Equal(t, 2, number(t, db, "SELECT count(*) FROM done WHERE id IN ('receipt:' || ?1, 'webhook:' || ?1)", b.order), b.order)
			paid++
		}
	}
	require.Equal(t, paid, number(t, db, "SELECT count(*) FROM orders WHERE state = 'paid'"))
	require.Zero(t, number(t, db, "SELECT count(*) FROM orders WHERE state = 'unpaid'"))
	return paid
}
