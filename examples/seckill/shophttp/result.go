package shophttp

import (
	"errors"
	"fmt"
	"time"
)

// Result is what became of a sale.
type Result struct {
	Options
	Rows     standing // what the database and the stock say
	Told     report   // what the processes said, summed up
	Took     time.Duration
	Commands int64 // that Redis ran, with those within scripts; 0 with Faults
	Tasks    int64 // that were left at the end
	Samples  []Sample
	Events   []Event
}

// Rate returns the requests a second.
func (r Result) Rate() float64 { return float64(r.Told.Requests) / r.Took.Seconds() }

// P99 returns the time within which 99 of 100 requests were answered, exact to an eighth.
func (r Result) P99() time.Duration { return r.Told.Times.percentile(99) }

// Longest returns the longest time of a request, exact to an eighth.
func (r Result) Longest() time.Duration { return r.Told.Times.percentile(100) }

// Sold returns how many units are paid, or may yet be.
func (r Result) Sold() int { return r.Rows.Paid + r.Rows.Unpaid }

// Oversold returns how many units were sold that there are not.
func (r Result) Oversold() int { return max(r.Sold()-r.Rows.Total, 0) }

// PerRequest returns the transactions of the database, and the commands of Redis, for a request.
func (r Result) PerRequest() (transactions, commands float64) {
	n := float64(max(r.Told.Requests, 1))
	return float64(r.Told.Transactions) / n, float64(r.Commands) / n
}

// Check returns an error if the sale did not sell exactly its stock, one unit a customer.
func (r Result) Check() error {
	var errs []error
	failIf := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	s := r.Rows
	failIf(s.Paid != s.Total || s.Unpaid != 0, "%d units paid and %d unpaid, %d were for sale", s.Paid, s.Unpaid, s.Total)
	failIf(s.Stock != s.Total-s.Paid-s.Unpaid, "%d units lost", s.Total-s.Paid-s.Unpaid-s.Stock)
	failIf(s.Twice > 0, "%d customers have more than one unit", s.Twice)
	failIf(s.Early > 0, "%d orders were cancelled too early", s.Early)
	failIf(int(r.Told.Paid) > s.Paid, "%d customers were told that they have paid, %d have", r.Told.Paid, s.Paid)
	failIf(r.Told.Hung > 0, "%d requests were not answered within %v", r.Told.Hung, requestLimit)
	failIf(r.Tasks > 0, "%d tasks are left", r.Tasks)
	return errors.Join(errs...)
}

// AllPaid returns when the last unit was paid, exact to a quarter of a second.
func (r Result) AllPaid() time.Duration {
	for _, s := range r.Samples {
		if s.Paid >= r.Rows.Total {
			return s.At
		}
	}
	return r.Took
}
