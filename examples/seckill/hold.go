package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// hold runs both sales and prints a report. The error says that the second sale did not sell
// exactly its stock, or why it could not run.
func hold(ctx context.Context, c config, s *screen) error {
	dir, err := os.MkdirTemp("", "seckill-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	s.say("%d buyers, %d units, seed %d", c.Buyers, c.Stock, c.Seed)
	without, err := saleWithoutLock(ctx, c, filepath.Join(dir, "without.db"))
	if err != nil {
		return fmt.Errorf("sale without a lock: %w", err)
	}
	s.say("without a lock: %d units sold of %d, oversold by %d", without.paid, c.Stock, without.oversold)

	with, err := saleWithLocker(ctx, c, filepath.Join(dir, "with.db"), s)
	if err != nil {
		return fmt.Errorf("sale with a lock: %w", err)
	}
	s.say("with Locker and Queue: %d units paid of %d, oversold by %d\n", with.paid, c.Stock, with.oversold)
	s.say("%s", report(without, with))
	return with.check()
}

// saleWithLocker runs the sale with a Locker and a Queue, in this process or in children.
func saleWithLocker(ctx context.Context, c config, file string, s *screen) (figures, error) {
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

	// Lock and queue have names of this run, so that other runs on the same server, or the
	// remains of a crashed one, do not interfere.
	e := assignment{config: c, Addr: server.addr, DB: file, Run: "seckill-" + strings.ToLower(rand.Text()[:10])}
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
