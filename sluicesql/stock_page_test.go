package sluicesql_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/sqltest"
)

// TestStockPage_ItsStatementsKeepAnOrder: the SQL of docs/stock.md does what the page says of it.
func TestStockPage_ItsStatementsKeepAnOrder(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/stock.md")
	require.NoError(t, err)
	var blocks [][]string
	for _, found := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		text := regexp.MustCompile(`(?m)^\s*--.*$`).ReplaceAllString(found[1], "")
		blocks = append(blocks, strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";"))
	}
	require.Len(t, blocks, 2)
	standard, mysql := blocks[0], blocks[1]
	lastWord := regexp.MustCompile("AND \\(state = 'paid' OR [^`]*").FindString(string(page))
	require.Contains(t, lastWord, "< 10")
	require.Len(t, standard, 5)
	require.Len(t, mysql, 6)

	// open is a call of the page's Open, until when the order may be paid and now are in seconds.
	type open func(db *sql.DB, number, buyer string, payBy, now int) (state string, err error)
	both := func(db *sql.DB, number, buyer string, payBy, now int) (state string, err error) {
		return state, db.QueryRowContext(t.Context(), standard[2], number, buyer, payBy, now).Scan(&state, new(int))
	}
	three := func(db *sql.DB, number, buyer string, payBy, now int) (state string, err error) {
		if _, err := db.ExecContext(t.Context(), mysql[1], number, buyer, payBy); err != nil {
			return "", err
		}
		if _, err := db.ExecContext(t.Context(), mysql[2], buyer, now); err != nil {
			return "", err
		}
		return state, db.QueryRowContext(t.Context(), mysql[3], buyer, number).Scan(&state, new(int))
	}
	for name, on := range map[string]struct {
		start  func(t *testing.T) (driver, source string)
		schema []string
		open   open
		pay    []string // what there is to pay for, and the payment
	}{
		"sqlite": {func(t *testing.T) (string, string) { return "sqlite", filepath.Join(t.TempDir(), "shop.db") }, standard[:2], both, standard[3:]},
		"postgres": {func(t *testing.T) (string, string) {
			s := sqltest.Start(t, sqltest.Postgres)
			return s.Driver, s.DSN
		}, standard[:2], both, standard[3:]},
		"mariadb": {func(t *testing.T) (string, string) {
			s := sqltest.Start(t, sqltest.MariaDB)
			return s.Driver, s.DSN + "?clientFoundRows=true"
		}, mysql[:1], three, mysql[4:]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := sql.Open(on.start(t))
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			for _, statement := range on.schema {
				_, err := db.ExecContext(t.Context(), statement)
				require.NoError(t, err, statement)
			}
			opened := func(want, number, buyer string, payBy, now int) {
				t.Helper()
				state, err := on.open(db, number, buyer, payBy, now)
				require.NoError(t, err)
				require.Equal(t, want, state)
			}
			more := "" // behind the payment's statement
			paid := func(want int64, number string) {
				t.Helper()
				result, err := db.ExecContext(t.Context(), on.pay[1]+more, number)
				require.NoError(t, err)
				n, err := result.RowsAffected()
				require.NoError(t, err)
				require.Equal(t, want, n)
			}
			toPay := func(want, buyer string) {
				t.Helper()
				var number string
				if err := db.QueryRowContext(t.Context(), on.pay[0], buyer).Scan(&number); want != "" {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, sql.ErrNoRows)
				}
				require.Equal(t, want, number)
			}
			toPay("", "ann")
			opened("unpaid", "1", "ann", 100, 0)
			opened("unpaid", "1", "ann", 199, 99)
			toPay("1", "ann")
			paid(1, "1")
			paid(1, "1")
			opened("paid", "1", "ann", 300, 200)
			opened("paid", "2", "ann", 400, 300) // Redis has lost the first one's task

			opened("unpaid", "3", "bob", 100, 0)
			opened("cancelled", "3", "bob", 200, 100)
			paid(0, "3")
			toPay("", "bob")
			opened("cancelled", "3", "bob", 300, 150)
			opened("unpaid", "4", "bob", 300, 200)
			paid(0, "3") // it comes late, and is not of the fourth
			opened("unpaid", "4", "bob", 300, 250)
			toPay("4", "bob")
			opened("unpaid", "3", "bob", 500, 290)    // Redis has come back with an older task: the row that counts decides
			opened("cancelled", "5", "bob", 500, 400) // and for the fifth, too, when its time is over
			opened("unpaid", "10", "bob", 500, 400)
			opened("cancelled", "3", "bob", 700, 600)

			opened("unpaid", "6", "Ann", 500, 400) // another buyer, as for Redis
			opened("unpaid", "x", "bo\u00e9", 500, 400)
			opened("unpaid", "X", "boe", 500, 400)
			_, err = db.ExecContext(t.Context(), "INSERT INTO orders (number, buyer, state, pay_by) VALUES ('7', 'ann', 'unpaid', 1)")
			require.Error(t, err, "one a buyer")

			// The payment has the last word: of ten units, or here of two, ann has paid for one.
			more = " " + strings.Replace(lastWord, "< 10", "< 2", 1)
			opened("unpaid", "8", "eve", 500, 400)
			opened("unpaid", "9", "fay", 500, 400)
			paid(1, "8")
			paid(0, "9")
			paid(1, "8")
			paid(1, "1")
		})
	}
}
