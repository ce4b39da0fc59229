package sluicesql

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Dialect is which SQL a database speaks.
type Dialect int

// The dialects. The zero value is Postgres.
const (
	Postgres Dialect = iota
	MySQL            // MariaDB, too
	SQLite
)

// Execer is a transaction: a *sql.Tx, a *sqlx.Tx, the ConnPool of gorm's Statement, or a *sql.Conn on
// which one was begun. A database itself, such as a *sql.DB, is ErrInvalid.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// inTransaction refuses what begins transactions and is none: the statement would be committed by
// itself, whatever becomes of the others.
func inTransaction(tx Execer) error {
	if _, is := tx.(*sql.Conn); is {
		return nil
	}
	// By their names: what those of gorm and bun return is of types of their own. Their transactions may
	// begin others within.
	if v := reflect.ValueOf(tx); v.MethodByName("BeginTx").IsValid() && !v.MethodByName("Commit").IsValid() {
		return fmt.Errorf("%w: %T is no transaction", sluice.ErrInvalid, tx)
	}
	return nil
}

// The names of the tables. Those of refused tasks and effects are made from that of the outbox.
const (
	defaultTable = "sluice_outbox"
	// longestTable is how long the table's name may be: PostgreSQL cuts off what is longer than 63
	// bytes, and that of the refused tasks has "_refused" behind it.
	longestTable = 55
)

// types are what a dialect calls things.
var types = map[Dialect]struct{ id, key, text, long, micros string }{
	// There is no index of the outbox but this key: the planner has no worse one to choose.
	Postgres: {"BIGINT GENERATED ALWAYS AS IDENTITY", ", PRIMARY KEY (queue, id)", "VARCHAR(512)", "TEXT", "BIGINT"},
	// Names and IDs are compared byte by byte.
	MySQL:  {"BIGINT AUTO_INCREMENT", ", PRIMARY KEY (queue, id), KEY (id)", "VARBINARY(768)", "LONGTEXT CHARACTER SET utf8mb4", "BIGINT"},
	SQLite: {"INTEGER PRIMARY KEY AUTOINCREMENT", "", "TEXT", "TEXT", "INTEGER"},
}

var tableName = regexp.MustCompile(`^[A-Za-z0-9_.]*$`)

// check says what is wrong with a dialect and the name of a table.
func (d Dialect) check(table string) error {
	if _, ok := types[d]; !ok {
		return fmt.Errorf("sluicesql: %w: no Dialect has the value %d", sluice.ErrInvalid, d)
	}
	if !tableName.MatchString(table) {
		return fmt.Errorf("sluicesql: %w: the table's name has another character than letters, digits, '_' and '.'", sluice.ErrInvalid)
	}
	if name := table[strings.LastIndexByte(table, '.')+1:]; len(name) > longestTable {
		return fmt.Errorf("sluicesql: %w: the table's name has more than %d bytes", sluice.ErrInvalid, longestTable)
	}
	return nil
}

// places returns n parameters of a statement, from the from-th on, with commas between.
func (d Dialect) places(from, n int) string {
	places := make([]string, n)
	for i := range places {
		places[i] = "?"
		if d == Postgres {
			places[i] = fmt.Sprintf("$%d", from+i)
		}
	}
	return strings.Join(places, ", ")
}

// Schema returns the statements that make the tables and their indexes, unless they are there: the
// outbox, the tasks that were refused, and the effects that Once notes. Each ends with a semicolon.
func (o Outbox) Schema() string {
	var text strings.Builder
	for _, statement := range o.statements() {
		text.WriteString(statement + ";\n")
	}
	return text.String()
}

func (o Outbox) statements() []string {
	t, table := types[o.Dialect], o.table()
	index := func(name, of, columns string) string {
		place := strings.LastIndexByte(of, '.') + 1 // SQLite has the schema before the index's name, and there only
		return fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s_%s ON %s (%s)", of, name, of[place:], columns)
	}
	doneAt := ""
	if o.Dialect == MySQL { // which knows no IF NOT EXISTS of an index
		doneAt = ", INDEX done_at (done_at)"
	}
	refusedKey := t.id
	if t.key != "" {
		refusedKey += " PRIMARY KEY"
	}
	statements := []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (id %s, queue %s NOT NULL, tasks %s NOT NULL, written_at %s NOT NULL%s)", table, t.id, t.text, t.long, t.micros, t.key),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s_refused (id %s, queue %s NOT NULL, task %s NOT NULL, reason %s NOT NULL, refused_at %s NOT NULL)", table, refusedKey, t.text, t.long, t.long, t.micros),
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (queue %s NOT NULL, task %s NOT NULL, version %s NOT NULL, done_at %s NOT NULL, PRIMARY KEY (queue, task, version)%s)",
			onceTable, t.text, t.text, t.text, t.micros, doneAt),
	}
	if o.Dialect == SQLite {
		statements = append(statements, index("queue", table, "queue, id"))
	}
	if o.Dialect != MySQL {
		statements = append(statements, index("done_at", onceTable, "done_at"))
	}
	return statements
}

// Migrate makes the tables of Schema, unless they are there. Several processes may do so at a time.
func (o Outbox) Migrate(ctx context.Context, db *sql.DB) error {
	if err := o.Dialect.check(o.Table); err != nil {
		return err
	}
	for _, statement := range o.statements() {
		var err error
		for range 10 { // where two make a table at a time, IF NOT EXISTS fails for one of them
			if _, err = db.ExecContext(ctx, statement); err == nil || ctx.Err() != nil {
				break
			}
			time.Sleep(20 * time.Millisecond) // until it is there
		}
		if err != nil {
			return fmt.Errorf("sluicesql: migrate: %w", err)
		}
	}
	return nil
}
