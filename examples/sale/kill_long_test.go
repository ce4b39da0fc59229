//go:build long && unix

package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/sqltest"
)

const (
	phones, crowd, kills = 100, 20_000, 25
)

// fleet is the processes of the shop, and their buyers.
type fleet struct {
	t      *testing.T
	config config
	web    *http.Client
	told   sync.Map // the buyers who were told that they have paid
	peace  atomic.Bool
	over   atomic.Bool

	mu        sync.Mutex // guards what follows
	processes []*redistest.Child
	urls      []string
}

// start starts a process in place i, and waits until it serves.
func (f *fleet) start(i int) {
	spec, err := json.Marshal(f.config)
	require.NoError(f.t, err)
	p, err := redistest.StartChild(f.t.Context(), os.Stderr, programEnv+"="+string(spec))
	require.NoError(f.t, err)
	address, err := p.Stdout.ReadString('\n')
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[i], f.urls[i] = p, strings.TrimSpace(address)
}

// post asks one of the processes, and returns its status: 0 if there was no answer.
func (f *fleet) post(path, buyer string) int {
	f.mu.Lock()
	address := f.urls[rand.IntN(len(f.urls))]
	f.mu.Unlock()
	response, err := f.web.PostForm(address+path, url.Values{"buyer": {buyer}})
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// buyer asks once for a phone, or until there was an answer, and pays for it: seldom as long as
// processes are killed, so that most of them are sold many times, and always after that.
func (f *fleet) buyer(name string) {
	status := 0
	for status == 0 || status == http.StatusServiceUnavailable {
		status = f.post("/buy", name)
	}
	if status != http.StatusGone && (f.peace.Load() || rand.IntN(60) == 0) && f.post("/pay", name) == http.StatusOK {
		f.told.Store(name, true)
	}
}

// TestSale_UnderKills: three processes sell 100 phones to 20,000 buyers, most of whom do not pay in
// time. 25 times one of the processes is killed at random and replaced. No more phones have an
// order that counts than there are, at any moment, and at the end so many are paid: also if Redis
// forgets everything in the middle.
func TestSale_UnderKills(t *testing.T) {
	for _, tc := range []struct {
		name             string
		postgres, forget bool
	}{{"sqlite", false, false}, {"postgres", true, false}, {"postgres, Redis forgets", true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			c := config{Redis: redistest.Start(t).Addr, SQLite: filepath.Join(t.TempDir(), "shop.db"), Addr: "127.0.0.1:0", PayIn: 300 * time.Millisecond}
			if tc.postgres {
				c.Postgres = sqltest.Start(t, sqltest.Postgres).DSN
			}
			underKills(t, c, tc.forget)
		})
	}
}

func underKills(t *testing.T, c config, forget bool) {
	driver, source := "sqlite", c.SQLite
	if c.Postgres != "" {
		driver, source = "pgx", c.Postgres
	}
	db, err := OpenDB(t.Context(), driver, source)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	rdb := redis.NewClient(&redis.Options{Addr: c.Redis})
	defer func() { require.NoError(t, rdb.Close()) }()
	shop, err := NewShop(rdb, db, c.PayIn) // to look; its worker does not run
	require.NoError(t, err)
	require.NoError(t, shop.Queue.SetStock(t.Context(), item, phones))
	f := &fleet{
		t: t, config: c, processes: make([]*redistest.Child, 3), urls: make([]string, 3),
		web: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	for i := range f.processes {
		f.start(i)
	}
	t.Cleanup(func() {
		for _, p := range f.processes {
			p.Kill()
		}
	})

	var all sync.WaitGroup
	var asked atomic.Int64
	for range 64 {
		all.Go(func() {
			for !f.over.Load() {
				f.buyer(fmt.Sprint("buyer-", asked.Add(1)))
			}
		})
	}
	all.Go(func() {
		defer f.over.Store(true)
		f.watch(shop, db)
	})
	for n := 0; (n < kills || asked.Load() < crowd) && !f.over.Load(); n++ {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		i := rand.IntN(len(f.processes))
		f.processes[i].Kill()
		if forget && n == kills/2 {
			f.refill(shop, rdb)
			continue
		}
		f.start(i)
	}
	require.False(t, f.over.Load(), "before the last kill")
	f.peace.Store(true)
	all.Wait()
	for _, p := range f.processes {
		require.NoError(t, p.Close())
	}

	info, err := shop.Queue.Stock(t.Context(), item)
	require.NoError(t, err)
	require.Equal(t, sluice.StockInfo{Total: phones, Sold: phones}, info)
	paid, buyers := count(t, db, "paid"), map[string]bool{}
	require.Equal(t, phones, paid)
	rows, err := db.QueryContext(t.Context(), "SELECT buyer FROM orders WHERE state = 'paid'")
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		buyers[name] = true
	}
	require.NoError(t, rows.Err())
	require.Len(t, buyers, phones, "one a buyer")
	f.told.Range(func(name, _ any) bool {
		require.True(t, buyers[name.(string)], "%s was told that it has paid", name)
		return true
	})
	t.Logf("%d buyers asked; %d paid, %d cancelled", asked.Load(), paid, count(t, db, "cancelled"))
}

// refill is what an operator does when Redis has forgotten everything: the shop stops, and starts
// again when Redis has what the rows say.
func (f *fleet) refill(shop *Shop, rdb *redis.Client) {
	for _, p := range f.processes {
		p.Kill()
	}
	require.NoError(f.t, rdb.FlushAll(f.t.Context()).Err())
	require.NoError(f.t, shop.Refill(f.t.Context(), phones))
	for i := range f.processes {
		f.start(i)
	}
}

// watch compares the rows with the stock until all is sold, or 3 minutes are over.
func (f *fleet) watch(shop *Shop, db *sql.DB) {
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if n := count(f.t, db, "unpaid", "paid"); n > phones {
			f.t.Errorf("%d orders of %d phones", n, phones)
			return
		}
		paid := count(f.t, db, "paid")
		info, err := shop.Queue.Stock(f.t.Context(), item)
		if err == nil && (info.Left < 0 && info.Total > 0 || info.Left+info.Held+info.Sold != info.Total) { // no total: a refill is under way
			f.t.Errorf("stock: %+v", info)
			return
		}
		if err == nil && info.Left == 0 && info.Held == 0 && paid == phones {
			return
		}
		if time.Now().After(end) {
			f.t.Errorf("stranded: %d paid, %+v", paid, info)
			return
		}
	}
}

// count returns how many orders are in one of the states, at one moment.
func count(t *testing.T, db *sql.DB, states ...string) (n int) {
	err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM orders WHERE state IN ('"+strings.Join(states, "', '")+"')").Scan(&n)
	if err != nil {
		t.Errorf("count: %v", err)
	}
	return n
}
