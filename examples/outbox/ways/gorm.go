package main

import (
	"context"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// Customer is a row, by gorm.
type Customer struct {
	Name     string `gorm:"primaryKey"`
	Welcomed bool
}

// withGorm: a transaction of gorm is given as its ConnPool.
func withGorm(dsn string) (w way, err error) {
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	if err != nil {
		return w, err
	}
	w.db, err = db.DB()
	w.signUp = func(ctx context.Context, name string) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := tx.Create(&Customer{Name: name}).Error; err != nil {
				return err
			}
			return outbox.Enqueue(ctx, tx.Statement.ConnPool, "welcome", sluice.Task{ID: name})
		})
	}
	w.welcome = func(ctx context.Context, e sluice.Entry) error {
		return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			first, err := sluicesql.Once(ctx, tx.Statement.ConnPool, e)
			if err != nil || !first {
				return err
			}
			return tx.Model(&Customer{Name: e.ID}).Update("welcomed", true).Error
		})
	}
	return w, err
}
