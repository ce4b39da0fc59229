//go:build long && unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/sluice-go/sluice/examples/shop/sale"
	"github.com/sluice-go/sluice/internal/redistest"
)

// startPostgres starts a PostgreSQL server for one test, and returns its DSN. It refuses to run as
// root; its own user takes over then.
func startPostgres(t *testing.T) string {
	t.Helper()
	binaries, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	require.NoError(t, err)
	if len(binaries) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("no PostgreSQL")
		}
		t.Skip("no PostgreSQL on this machine: install it to run this test (Debian: postgresql)")
	}
	initdb := binaries[len(binaries)-1]
	folder, as := t.TempDir(), &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, err := strconv.Atoi(u.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(u.Gid)
		require.NoError(t, err)
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		require.NoError(t, os.Chown(folder, uid, gid))
		require.NoError(t, os.Chmod(filepath.Dir(folder), 0o755))
	}
	data := filepath.Join(folder, "data")
	made := exec.CommandContext(t.Context(), initdb, "-D", data, "-U", "shop", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
	made.SysProcAttr, made.Dir = as, folder
	out, err := made.CombinedOutput()
	require.NoError(t, err, "%s", out)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	server := exec.CommandContext(context.Background(), filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", folder, "-h", "127.0.0.1", "-p", strconv.Itoa(port))
	server.SysProcAttr, server.Dir, server.Stderr = as, folder, io.Discard
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Signal(os.Interrupt); _ = server.Wait() })
	dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=shop dbname=postgres sslmode=disable", port)
	require.Eventually(t, func() bool {
		_, closeDB, err := open(config{postgres: dsn})
		if err == nil {
			_ = closeDB()
		}
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	return dsn
}

// TestPostgres_SellsTenPhones is the whole program, with a real Redis and PostgreSQL.
func TestPostgres_SellsTenPhones(t *testing.T) {
	c := program{Redis: redistest.Start(t).Addr, Postgres: startPostgres(t),
		Config: sale.Config{Item: "phone", Total: 10, PayIn: 2 * time.Second, Every: time.Second, Crash: 10 * time.Second}}.config()
	c.buyers = 2000
	var out strings.Builder
	require.NoError(t, run(t.Context(), c, &out), out.String())
	t.Log(out.String())
	require.Contains(t, out.String(), "10 of 10 paid, by 10 users")
}

// fleet is the processes of the service.
type fleet struct {
	t         *testing.T
	spec      string
	mu        sync.Mutex // guards what follows
	processes []*redistest.Child
	urls      []string
}

// start starts a process in place i, and waits until it serves.
func (f *fleet) start(i int) {
	p, err := redistest.StartChild(f.t.Context(), os.Stderr, programEnv+"="+f.spec)
	require.NoError(f.t, err)
	url, err := p.Stdout.ReadString('\n')
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.processes[i], f.urls[i] = p, strings.TrimSpace(url)
}

func (f *fleet) url() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.urls[rand.IntN(len(f.urls))]
}

const (
	phones, users, kills = 40, 200, 25
)

// buyer asks any of the processes for a phone until the sale is over. It seldom pays as long as
// processes are killed, and always after that. It returns the order that was paid.
func (f *fleet) buyer(ctx context.Context, name string, peace, over *atomic.Bool) (paid string) {
	web := client()
	for ctx.Err() == nil && !over.Load() {
		time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		a, err := post[sale.Answer](try, crowd{url: f.url(), client: web}, "/buy?user="+name)
		if err == nil && a.Order != "" && (peace.Load() || rand.IntN(60) == 0) {
			state, err := post[struct{ State string }](try, crowd{url: f.url(), client: web}, "/pay?order="+a.Order)
			if err == nil && state.State == sale.Paid {
				paid = a.Order
			}
		}
		cancel()
		if paid != "" {
			return paid
		}
	}
	return ""
}

// TestShop_UnderKills: three processes sell 40 phones to 200 users, most of whose orders are not
// paid in time. 25 times one of the processes is killed at random and replaced. At each moment, the
// stock and the orders in the database are 40 units, and at the end so many users have paid for
// one. That holds too if Redis forgets everything in the middle.
func TestShop_UnderKills(t *testing.T) {
	for _, tc := range []struct {
		name             string
		postgres, forget bool
	}{{"sqlite", false, false}, {"sqlite, Redis forgets", false, true}, {"postgres", true, false}} {
		t.Run(tc.name, func(t *testing.T) {
			p := program{Redis: redistest.Start(t).Addr, SQLite: filepath.Join(t.TempDir(), "shop.db"),
				Config: sale.Config{Item: "phone", Total: phones, PayIn: 700 * time.Millisecond, Every: 500 * time.Millisecond, Crash: time.Second}}
			if tc.postgres {
				p.Postgres = startPostgres(t)
			}
			underKills(t, p, tc.forget)
		})
	}
}

func underKills(t *testing.T, p program, forget bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	spec, err := json.Marshal(p)
	require.NoError(t, err)
	f := &fleet{t: t, spec: string(spec), processes: make([]*redistest.Child, 3), urls: make([]string, 3)}
	for i := range f.processes {
		f.start(i)
	}
	t.Cleanup(func() {
		for _, p := range f.processes {
			p.Kill()
		}
	})
	db, closeDB, err := open(p.config())
	require.NoError(t, err)
	defer closeDB()
	rdb := redis.NewClient(&redis.Options{Addr: p.Redis})
	defer rdb.Close()
	shop, err := sale.Open(ctx, db, rdb, p.Config) // to look; its worker does not run
	require.NoError(t, err)
	defer shop.Close()

	var peace, over atomic.Bool
	var all sync.WaitGroup
	var told sync.Map // user -> order
	for i := range users {
		name := fmt.Sprint("user-", i)
		all.Go(func() {
			if order := f.buyer(ctx, name, &peace, &over); order != "" {
				told.Store(name, order)
			}
		})
	}
	all.Go(func() {
		defer over.Store(true)
		for ctx.Err() == nil {
			stock, active := counts(t, db)
			if stock < 0 || stock+active != phones {
				t.Errorf("%d in stock, and %d orders", stock, active)
				return
			}
			if figures, err := shop.Figures(ctx); err == nil && figures.Done() {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	for n := 0; n < kills && !over.Load(); n++ {
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		i := rand.IntN(len(f.processes))
		f.processes[i].Kill()
		if forget && n == kills/2 {
			require.NoError(t, rdb.FlushAll(ctx).Err())
		}
		f.start(i)
	}
	require.False(t, over.Load(), "before the last kill")
	peace.Store(true)
	all.Wait()
	require.NoError(t, ctx.Err(), "the sale has not ended")
	for _, p := range f.processes {
		require.NoError(t, p.Close())
	}
	figures, err := shop.Figures(t.Context())
	require.NoError(t, err)
	require.True(t, figures.Done(), "%+v", figures)
	require.EqualValues(t, phones, figures.Accepted)
	if !forget {
		require.Zero(t, figures.Refused)
	}
	told.Range(func(name, order any) bool {
		var n int64
		require.NoError(t, db.Model(&sale.Order{}).Where("id = ? AND buyer = ? AND state = ?", order, name, sale.Paid).Count(&n).Error)
		require.EqualValues(t, 1, n, "%s was told that %s is paid", name, order)
		return true
	})
	t.Logf("%d kills; %d of %d paid, by %d users; %d canceled, %d refused; %d in stock", kills, figures.Paid, phones, figures.Buyers, figures.Canceled,
		figures.Refused, figures.Item.Stock)
}

// counts returns what is in stock, and how many orders are unpaid or paid, at one moment.
func counts(t *testing.T, db *gorm.DB) (stock, active int) {
	row := db.Raw("SELECT stock, (SELECT count(*) FROM orders WHERE state IN ('unpaid', 'paid')) FROM items").Row()
	if err := row.Scan(&stock, &active); err != nil {
		t.Errorf("counts: %v", err)
	}
	return stock, active
}
