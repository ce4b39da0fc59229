package sale

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// newShop returns a shop with three phones whose orders are due for payment at once. No worker
// runs.
func newShop(t *testing.T, change func(*Config)) *Shop {
	t.Helper()
	db, err := gorm.Open(sqlite.Open(filepath.Join(t.TempDir(), "shop.db")+"?_pragma=busy_timeout(10000)&_txlock=immediate"), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	pool, err := db.DB()
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = pool.Close() })
	c := Config{Item: redistest.Name(t), Total: 3, Every: time.Hour, Crash: 5 * time.Second}
	if change != nil {
		change(&c)
	}
	s, err := Open(t.Context(), db, redistest.Redis(t).Client(t), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// work runs a worker until the test ends.
func (s *Shop) work(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Worker().Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
}

// buy has a user accepted by Redis, and returns the order's task, which is not enqueued.
func (s *Shop) buy(t *testing.T, user string) sluice.Entry {
	t.Helper()
	a, err := s.take(t.Context(), user)
	require.NoError(t, err)
	require.Equal(t, Accepted, a.Result)
	return sluice.Entry{Payload: []byte(user), Header: map[string]string{"order": a.Order}}
}

// figures returns the state of the sale without its tasks.
func (s *Shop) figures(t *testing.T) Figures {
	t.Helper()
	f, err := s.Figures(t.Context())
	require.NoError(t, err)
	f.Due, f.Scheduled = 0, 0
	return f
}

// state returns all of Redis and the database.
func (s *Shop) state(t *testing.T) (orders []Order, buyers map[string]string, f Figures) {
	t.Helper()
	require.NoError(t, s.db.Order("id").Find(&orders).Error)
	buyers, err := s.rdb.HGetAll(t.Context(), s.keys()[1]).Result()
	require.NoError(t, err)
	return orders, buyers, s.figures(t)
}

// twice runs a handler twice, and requires that the second time changes nothing.
func (s *Shop) twice(t *testing.T, handler sluice.Handler, e sluice.Entry) {
	t.Helper()
	require.NoError(t, handler(t.Context(), e))
	orders, buyers, f := s.state(t)
	require.NoError(t, handler(t.Context(), e))
	orders2, buyers2, f2 := s.state(t)
	require.Equal(t, orders, orders2)
	require.Equal(t, buyers, buyers2)
	require.Equal(t, f, f2)
}

func (s *Shop) require(t *testing.T, want Figures) {
	t.Helper()
	want.Item = Item{s.Item, s.Total, s.Total - int(want.Unpaid+want.Paid)}
	want.Buyers = want.Paid
	require.Equal(t, want, s.figures(t))
}

func TestShop_SellsExactlyTheStock(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.Total, c.PayIn = 10, time.Minute })
	s.work(t)
	const users = 250
	var answers [users * 2]Answer
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			a, err := s.Buy(t.Context(), fmt.Sprint("user-", i%users))
			answers[i] = a
			if err != nil {
				t.Errorf("buy: %v", err)
			}
		})
	}
	all.Wait()
	orders := map[int]string{} // by user
	for i, a := range answers {
		if a.Result == Accepted {
			require.Empty(t, orders[i%users], "accepted twice")
			orders[i%users] = a.Order
		}
	}
	require.Len(t, orders, 10)
	for i, a := range answers {
		require.Equal(t, orders[i%users], a.Order, "%d: %s", i, a.Result)
	}
	for _, id := range orders {
		require.Eventually(t, func() bool {
			state, err := s.Pay(t.Context(), id)
			return err == nil && state == Paid
		}, 20*time.Second, 10*time.Millisecond)
	}
	s.require(t, Figures{Accepted: 10, Paid: 10})
	require.True(t, s.figures(t).Done())
}

func TestShop_UnpaidUnitsAreSoldAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.PayIn = 300 * time.Millisecond })
	for _, user := range []string{"ann", "bob", "cleo"} {
		_, err := s.Buy(t.Context(), user)
		require.NoError(t, err)
	}
	a, err := s.Buy(t.Context(), "dan")
	require.NoError(t, err)
	require.Equal(t, Answer{SoldOut, ""}, a)
	s.work(t) // now: the units stay away for as long as a busy machine takes
	require.Eventually(t, func() bool { return s.figures(t).Stock == 3 }, 20*time.Second, 10*time.Millisecond)
	s.require(t, Figures{Stock: 3, Canceled: 3})
	for _, user := range []string{"dan", "ann", "eve"} { // ann tries once more
		a, err := s.Buy(t.Context(), user)
		require.NoError(t, err)
		require.Equal(t, Accepted, a.Result)
		for state := Accepted; state == Accepted; {
			state, err = s.Pay(t.Context(), a.Order)
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool { f := s.figures(t); return f.Unpaid == 0 }, 20*time.Second, 10*time.Millisecond)
	f := s.figures(t) // on a busy machine some were late to pay
	require.EqualValues(t, 6, f.Paid+f.Canceled)
	require.EqualValues(t, 3, f.Paid+int64(f.Item.Stock))
}

func TestShop_HandlersRunTwice(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	ann, bob := s.buy(t, "ann"), s.buy(t, "bob")
	s.twice(t, s.order, ann)
	s.twice(t, s.order, bob)
	s.require(t, Figures{Stock: 1, Accepted: 2, Unpaid: 2})

	state, err := s.Pay(t.Context(), bob.Header["order"])
	require.NoError(t, err)
	require.Equal(t, Paid, state)
	state, err = s.Pay(t.Context(), bob.Header["order"])
	require.NoError(t, err)
	require.Equal(t, Paid, state, "again")
	s.twice(t, s.cancel, ann)
	s.twice(t, s.cancel, bob) // is paid
	s.require(t, Figures{Stock: 2, Accepted: 1, Paid: 1, Canceled: 1})
	state, err = s.Pay(t.Context(), ann.Header["order"])
	require.NoError(t, err)
	require.Equal(t, Canceled, state, "too late")
	s.require(t, Figures{Stock: 2, Accepted: 1, Paid: 1, Canceled: 1})

	later := s.buy(t, "ann")
	s.twice(t, s.cancel, ann) // her first order, once more
	s.twice(t, s.order, ann)
	s.require(t, Figures{Stock: 1, Accepted: 2, Paid: 1, Canceled: 1})
	s.twice(t, s.order, later)
	s.require(t, Figures{Stock: 1, Accepted: 2, Unpaid: 1, Paid: 1, Canceled: 1})
}

func TestShop_TheDatabaseHasTheLastWord(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	for _, user := range []string{"ann", "bob", "cleo"} {
		s.twice(t, s.order, s.buy(t, user))
	}
	require.NoError(t, s.rdb.Set(t.Context(), s.keys()[0], 2, 0).Err()) // an older Redis
	require.NoError(t, s.rdb.HDel(t.Context(), s.keys()[1], "ann").Err())
	s.twice(t, s.order, s.buy(t, "ann")) // has one
	s.twice(t, s.order, s.buy(t, "dan")) // gets none
	s.require(t, Figures{Accepted: 2, Unpaid: 3, Refused: 2})
	require.NoError(t, s.Reconcile(t.Context()))
	s.require(t, Figures{Accepted: 3, Unpaid: 3, Refused: 2})
}

func TestShop_CancelBeforeTheRow(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.PayIn = time.Minute })
	ann := s.buy(t, "ann")
	s.twice(t, s.cancel, ann) // the process has died before the commit
	s.require(t, Figures{Stock: 2, Accepted: 1})
	s.twice(t, s.order, ann)
	err := s.cancel(t.Context(), ann) // the task of a first attempt
	require.ErrorContains(t, err, "again in")
	s.require(t, Figures{Stock: 2, Accepted: 1, Unpaid: 1})
}

func TestShop_ReconcileMendsACrash(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.Every, c.PayIn = 200*time.Millisecond, time.Minute })
	s.buy(t, "ann") // a crash between the script and Enqueue
	s.require(t, Figures{Stock: 2, Accepted: 1})
	s.work(t)
	require.Eventually(t, func() bool { return s.figures(t).Unpaid == 1 }, 20*time.Second, 10*time.Millisecond)
	s.require(t, Figures{Stock: 2, Accepted: 1, Unpaid: 1})
}

func TestShop_ReconcileMendsWhatIsLost(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(ctx context.Context, s *Shop) error{
		"the task cancel": func(ctx context.Context, s *Shop) error { return s.queue.Purge(ctx) },
		"the step in Redis": func(ctx context.Context, s *Shop) error {
			s.rdb = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
			defer s.rdb.Close()
			id := s.rows(ctx)[0].ID
			if err := s.cancel(ctx, sluice.Entry{Header: map[string]string{"order": id}}); err == nil {
				return fmt.Errorf("%s was canceled", id)
			}
			return s.queue.Purge(ctx)
		},
		"all of Redis": func(ctx context.Context, s *Shop) error {
			if err := s.rdb.Del(ctx, s.keys()...).Err(); err != nil {
				return err
			}
			if a, err := s.Buy(ctx, "bob"); err != nil || a.Result != Closed {
				return fmt.Errorf("%s: %w", a.Result, err)
			}
			return s.queue.Purge(ctx)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, nil)
			rdb := s.rdb
			require.NoError(t, s.order(t.Context(), s.buy(t, "ann")))
			time.Sleep(2 * time.Millisecond) // until it is overdue
			require.NoError(t, lose(t.Context(), s))
			s.rdb = rdb
			require.NoError(t, s.Reconcile(t.Context()))
			s.work(t)
			require.Eventually(t, func() bool { return s.figures(t).Stock == 3 }, 20*time.Second, 10*time.Millisecond)
			s.require(t, Figures{Stock: 3, Canceled: 1})
		})
	}
}

func TestShop_ARedisThatForgotIsFilledAgain(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.PayIn = time.Minute })
	require.NoError(t, s.order(t.Context(), s.buy(t, "ann")))
	s.work(t)
	require.NoError(t, s.rdb.Del(t.Context(), s.keys()...).Err())
	require.Eventually(t, func() bool {
		a, err := s.Buy(t.Context(), "bob")
		return err == nil && a.Result == Accepted
	}, 20*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return s.figures(t).Unpaid == 2 }, 20*time.Second, 10*time.Millisecond)
	s.require(t, Figures{Stock: 1, Accepted: 2, Unpaid: 2})
	a, err := s.Buy(t.Context(), "ann")
	require.NoError(t, err)
	require.Equal(t, Have, a.Result)
}

func TestShop_ACancelBesideReconcile(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	ann := s.buy(t, "ann")
	require.NoError(t, s.order(t.Context(), ann))
	require.NoError(t, s.rdb.Del(t.Context(), s.keys()...).Err())
	canceled := false
	require.NoError(t, s.db.Callback().Query().After("gorm:after_query").Register("cancel", func(tx *gorm.DB) {
		if _, all := tx.Statement.Dest.(*[]Order); all && !canceled { // the run has read all orders
			canceled = true
			require.NoError(t, s.cancel(t.Context(), ann))
		}
	}))
	require.NoError(t, s.Reconcile(t.Context()))
	require.True(t, canceled)
	s.require(t, Figures{Stock: 3, Canceled: 1})
}

func TestShop_OpensBesideAnotherRun(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) {
		c.Crash = time.Second
		other, err := sluice.NewLocker(redistest.Redis(t).Client(t), sluice.WithAutoRenew())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, other.Close()) })
		_, err = other.Lock(t.Context(), "reconcile:"+c.Item)
		require.NoError(t, err)
	})
	a, err := s.Buy(t.Context(), "ann")
	require.NoError(t, err)
	require.Equal(t, Closed, a.Result)
}

func TestShop_PayBesideTheRow(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *Config) { c.PayIn = time.Minute })
	ann := s.buy(t, "ann")
	written := false
	require.NoError(t, s.db.Callback().Query().Before("gorm:query").Register("write", func(*gorm.DB) {
		if !written { // the UPDATE has found no row
			written = true
			require.NoError(t, s.order(t.Context(), ann))
		}
	}))
	state, err := s.Pay(t.Context(), ann.Header["order"])
	require.NoError(t, err)
	require.Equal(t, Paid, state)
}

// rows returns all orders.
func (s *Shop) rows(ctx context.Context) (orders []Order) {
	s.db.WithContext(ctx).Find(&orders)
	return orders
}
