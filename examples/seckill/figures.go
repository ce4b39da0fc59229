package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// standing is the state of a sale.
type standing struct {
	total, stock            int // units for sale, and those still in stock
	unpaid, paid, cancelled int // orders
}

func (s *shop) standing(ctx context.Context) (n standing, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT total, stock,
			(SELECT count(*) FROM orders WHERE status = 'unpaid'),
			(SELECT count(*) FROM orders WHERE status = 'paid'),
			(SELECT count(*) FROM orders WHERE status = 'cancelled')
		FROM item`).Scan(&n.total, &n.stock, &n.unpaid, &n.paid, &n.cancelled)
	return n, err
}

// section is one hold of the lock, for the report.
type section struct {
	at     time.Time
	waited time.Duration
	result string
}

func (s *shop) note(ctx context.Context, n section) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO section (at, waited, result) VALUES (?, ?, ?)`,
		n.at.UnixMicro(), n.waited.Microseconds(), n.result)
	return err
}

// figures are a sale's results, counted in its database. No process counts anything, so a
// process that is killed loses nothing.
type figures struct {
	standing
	oversold  int // units sold beyond the total, at the worst moment
	twice     int // customers with more than one unit
	sections  int // holds of the lock
	overtaken int // of these, how many the database rejected
	rate      int // holds a second, until the stock was first empty
	waited    spread
	late      spread // of cancellations
	took      time.Duration
}

// spread is the distribution of a time.
type spread struct {
	n                  int
	min, p50, p99, max time.Duration
}

func (s *shop) figures(ctx context.Context, took time.Duration) (f figures, err error) {
	f.took = took
	if f.standing, err = s.standing(ctx); err != nil {
		return f, err
	}
	err = s.db.QueryRowContext(ctx, `
		WITH out AS (SELECT -sum(units) OVER (ORDER BY seq) AS n FROM movement),
			many AS (SELECT 1 FROM orders WHERE status IN ('unpaid', 'paid') GROUP BY customer HAVING count(*) > 1),
			sold AS (SELECT at FROM section WHERE result = 'sold' ORDER BY at LIMIT (SELECT total FROM item)),
			rush AS (SELECT at FROM section WHERE at <= (SELECT max(at) FROM sold))
		SELECT
			(SELECT max(coalesce(max(n), 0) - (SELECT total FROM item), 0) FROM out),
			(SELECT count(*) FROM many),
			(SELECT count(*) FROM section),
			(SELECT count(*) FROM section WHERE result = 'overtaken'),
			(SELECT coalesce(1000000 * (count(*) - 1) / nullif(max(at) - min(at), 0), 0) FROM rush)`,
	).Scan(&f.oversold, &f.twice, &f.sections, &f.overtaken, &f.rate)
	if err != nil {
		return f, err
	}
	if f.waited, err = s.spread(ctx, `SELECT waited AS us FROM section`); err != nil {
		return f, err
	}
	f.late, err = s.spread(ctx, `SELECT cancelled - due AS us FROM orders WHERE status = 'cancelled'`)
	return f, err
}

// spread returns the distribution of the microseconds that a query returns as us.
func (s *shop) spread(ctx context.Context, query string) (d spread, err error) {
	var us [4]int64
	err = s.db.QueryRowContext(ctx, `
		WITH times AS (`+query+`), ranked AS (SELECT us, row_number() OVER (ORDER BY us) AS rank FROM times),
			counted AS (SELECT count(*) AS n FROM times)
		SELECT n, coalesce(min(us), 0),
			coalesce(max(us) FILTER (WHERE rank <= (n + 1) / 2), 0),
			coalesce(max(us) FILTER (WHERE rank <= (99 * n + 99) / 100), 0),
			coalesce(max(us), 0)
		FROM counted LEFT JOIN ranked`).Scan(&d.n, &us[0], &us[1], &us[2], &us[3])
	for i, t := range []*time.Duration{&d.min, &d.p50, &d.p99, &d.max} {
		*t = time.Duration(us[i]) * time.Microsecond
	}
	return d, err
}

// check returns an error if the sale did not sell exactly its stock.
func (f figures) check() error {
	var errs []error
	failIf := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	failIf(f.paid != f.total, "%d units paid, %d were for sale", f.paid, f.total)
	failIf(f.oversold > 0, "oversold by %d", f.oversold)
	failIf(f.stock != f.total-f.paid-f.unpaid, "%d units lost", f.total-f.paid-f.unpaid-f.stock)
	failIf(f.twice > 0, "%d customers have more than one unit", f.twice)
	failIf(f.late.min < 0, "an order was cancelled %v too early", -f.late.min)
	return errors.Join(errs...)
}
