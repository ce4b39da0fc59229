package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"time"

	"golang.org/x/sync/errgroup"
)

// saleWithoutLock runs the sale without a lock: each buyer reads the stock, thinks, and writes
// back the number that it read, less one. This overwrites what other buyers wrote meanwhile.
func saleWithoutLock(ctx context.Context, c config, file string) (figures, error) {
	began := time.Now()
	db, err := createShop(ctx, file, c.Stock)
	if err != nil {
		return figures{}, err
	}
	defer db.close()

	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, b := range c.share(0, 1) {
		g.Go(func() error { return db.buyWithoutLock(gctx, b, c.Seed) })
	}
	if err := g.Wait(); err != nil {
		return figures{}, err
	}
	return db.figures(ctx, time.Since(began))
}

func (s *shop) buyWithoutLock(ctx context.Context, b buyer, seed uint64) error {
	v, err := s.look(ctx, b.customer)
	if err != nil || v.stock == 0 || v.status != "" {
		return err
	}
	if err := pause(ctx, intend(seed, b.customer, v.orders).think); err != nil {
		return err
	}
	// One transaction does not help: the number that it writes was read before.
	return s.transact(ctx, func(tx *sql.Tx) error {
		_, err1 := tx.ExecContext(ctx, `INSERT INTO orders (id, customer, status) VALUES (?, ?, 'paid')`,
			rand.Text(), b.customer)
		_, err2 := tx.ExecContext(ctx, `INSERT INTO movement (units) VALUES (-1)`)
		_, err3 := tx.ExecContext(ctx, `UPDATE item SET stock = ?`, v.stock-1)
		return cmp.Or(err1, err2, err3)
	})
}
