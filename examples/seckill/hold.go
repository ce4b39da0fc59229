package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// hold runs the sales and prints a report. The error says that one of those which have to did not
// sell exactly its stock, or why it could not run.
func hold(ctx context.Context, c config, s *screen) error {
	dir, err := os.MkdirTemp("", "seckill-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	s.say("%d buyers, %d units, seed %d", c.Buyers, c.Stock, c.Seed)
	naive, err := saleWithoutLock(ctx, c, filepath.Join(dir, "naive.db"))
	if err != nil {
		return fmt.Errorf("naive sale: %w", err)
	}
	s.say("read, write back one less: %d units sold of %d, oversold by %d", naive.paid, c.Stock, naive.oversold)
	stock, err := saleOnRedis(ctx, c, false, filepath.Join(dir, "stock.db"), s)
	if err != nil {
		return fmt.Errorf("sale by Task.Take: %w", err)
	}
	s.say("by Task.Take: %d units paid of %d, oversold by %d", stock.paid, c.Stock, stock.oversold)
	locked, err := saleOnRedis(ctx, c, true, filepath.Join(dir, "lock.db"), s)
	if err != nil {
		return fmt.Errorf("sale by a lock: %w", err)
	}
	s.say("by a lock: %d units paid of %d, oversold by %d\n", locked.paid, c.Stock, locked.oversold)
	s.say("%s", report(naive, stock, locked))
	return errors.Join(stock.check(), locked.check())
}

// saleOnRedis runs a sale by Task.Take or by a lock, in this process or in children.
func saleOnRedis(ctx context.Context, c config, lock bool, file string, s *screen) (figures, error) {
	began := time.Now()
	server, err := openServer(ctx, c.Redis)
	if err != nil {
		return figures{}, err
	}
	defer server.close()
	db, err := createShop(ctx, file, c.Stock)
	if err != nil {
		return figures{}, err
	}
	defer db.close()

	// Queue and lock have names of this run, so that other runs on the same server, or the
	// remains of a crashed one, do not interfere.
	e := assignment{config: c, Lock: lock, Addr: server.addr, DB: file, Run: "seckill-" + strings.ToLower(rand.Text()[:10])}
	if err := server.setStock(ctx, e.Run, c.Stock); err != nil {
		return figures{}, err
	}
	defer server.clean(e.Run)
	if err := runSale(ctx, db, e, s); err != nil {
		return figures{}, err
	}
	return db.figures(ctx, time.Since(began))
}

// runSale runs the sale, and shows its progress.
func runSale(ctx context.Context, db *shop, e assignment, s *screen) error {
	ended := make(chan error, 1)
	go func() {
		if e.Procs > 1 {
			ended <- supervise(ctx, e, s)
		} else {
			ended <- sellAsOne(ctx, e)
		}
	}()
	defer s.endProgress()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if now, err := db.standing(ctx); err == nil {
			s.progress(now)
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return err
		}
	}
}
