// Package sluicesql connects tasks with transactions of a database, by database/sql: PostgreSQL,
// MySQL and MariaDB, SQLite.
//
// On the way in there is an [Outbox]: a transaction that writes an order writes the order's task,
// too, into a table. A [Relay] moves it into its queue. So the task is there if the transaction was
// committed, and only then.
//
// On the way out there is [Once]: a handler notes in its own transaction that its task has had its
// effect. So the effect is there once, however often the task is handed out.
//
//	outbox := sluicesql.Outbox{Dialect: sluicesql.Postgres}
//	err = outbox.Enqueue(ctx, tx, "orders", sluice.Task{ID: order.ID, Kind: "confirm"}) // in the transaction that writes the order
//	relay.Kick()                                                                       // after its commit
//
//	// In the handler's transaction: if it is the first, do the work; commit in both cases.
//	first, err := sluicesql.Once(ctx, tx, e, sluicesql.InQueue("orders"))
//
// The tables are what [Outbox.Schema] says: give it to your migration tool, or call
// [Outbox.Migrate].
//
// A transaction of gorm, sqlx or pgx's stdlib is an [Execer], too: for gorm it is tx.Statement.ConnPool.
package sluicesql
