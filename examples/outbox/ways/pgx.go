package main

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// execer makes a sluicesql.Execer of a transaction of pgx.
type execer struct{ tx pgx.Tx }

func (e execer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := e.tx.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// withPgx: a pool of pgx, whose connections the relay uses by database/sql.
func withPgx(dsn string) (way, error) {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return way{}, err
	}
	signUp := func(ctx context.Context, name string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO customers (name) VALUES ($1)", name); err != nil {
				return err
			}
			return outbox.Enqueue(ctx, execer{tx}, "welcome", sluice.Task{ID: name})
		})
	}
	welcome := func(ctx context.Context, e sluice.Entry) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			first, err := sluicesql.Once(ctx, execer{tx}, e)
			if err != nil || !first {
				return err
			}
			_, err = tx.Exec(ctx, "UPDATE customers SET welcomed = true WHERE name = $1", e.ID)
			return err
		})
	}
	return way{stdlib.OpenDBFromPool(pool), signUp, welcome}, nil
}
