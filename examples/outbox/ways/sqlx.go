package main

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// withSqlx: a *sqlx.Tx is given as it is.
func withSqlx(dsn string) (way, error) {
	db, err := sqlx.Open("pgx", dsn)
	if err != nil {
		return way{}, err
	}
	inTx := func(ctx context.Context, f func(tx *sqlx.Tx) error) error {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	signUp := func(ctx context.Context, name string) error {
		return inTx(ctx, func(tx *sqlx.Tx) error {
			if _, err := tx.NamedExecContext(ctx, "INSERT INTO customers (name) VALUES (:name)", map[string]any{"name": name}); err != nil {
				return err
			}
			return outbox.Enqueue(ctx, tx, "welcome", sluice.Task{ID: name})
		})
	}
	welcome := func(ctx context.Context, e sluice.Entry) error {
		return inTx(ctx, func(tx *sqlx.Tx) error {
			first, err := sluicesql.Once(ctx, tx, e)
			if err != nil || !first {
				return err
			}
			_, err = tx.NamedExecContext(ctx, "UPDATE customers SET welcomed = true WHERE name = :name", map[string]any{"name": e.ID})
			return err
		})
	}
	return way{db.DB, signUp, welcome}, nil
}
