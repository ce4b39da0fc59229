package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// lockJSON is a lock in JSON.
type lockJSON struct {
	Name       string   `json:"name"`
	NameBase64 string   `json:"name_base64,omitempty"`
	Held       bool     `json:"held"`
	TTLSeconds *float64 `json:"ttl_seconds"` // null: it has none
	Owner      string   `json:"owner"`       // empty: its holder has not named itself, or several hold it
	Owners     []string `json:"owners"`      // of those that have named themselves
	Holders    int      `json:"holders"`     // how many hold it
	Waiting    int      `json:"waiting"`     // how many processes wait in line for it
	// Of the first 16 of these, those that have named themselves, the first in line first.
	WaitingOwners []string `json:"waiting_owners"`
}

type locksJSON struct {
	Locks    []lockJSON `json:"locks"`
	Complete bool       `json:"complete"`
}

func toLockJSON(i inspect.LockInfo, held bool) lockJSON {
	j := lockJSON{Held: held, Owner: i.Owner, Owners: append([]string{}, i.Owners...), Holders: i.Holders, Waiting: i.Waiting, WaitingOwners: append([]string{}, i.WaitingOwners...)}
	j.Name, j.NameBase64 = report.Bytes(i.Name)
	if seconds := i.TTL.Seconds(); held && i.TTL >= 0 {
		j.TTLSeconds = &seconds
	}
	return j
}

func ttlText(ttl time.Duration) string {
	if ttl < 0 {
		return "none"
	}
	return span(ttl)
}

// ownerText is who holds the lock.
func ownerText(i inspect.LockInfo) string {
	switch {
	case i.Holders > 1:
		return fmt.Sprintf("(%d permits) %s", i.Holders, labels(i))
	case i.Owner == "":
		return "-"
	}
	return show(i.Owner)
}

// labels are what the holders of permits call themselves, and how many have not said.
func labels(i inspect.LockInfo) string {
	var all []string
	for _, label := range i.Owners {
		all = append(all, show(label))
	}
	said, n := strings.Join(all, ", "), i.Holders-len(i.Owners)
	switch {
	case n <= 0:
		return said
	case said == "":
		return fmt.Sprintf("%d without a label", n)
	}
	return fmt.Sprintf("%s and %d without a label", said, n)
}

// holders is ownerText within a sentence.
func holders(i inspect.LockInfo) string {
	if i.Holders > 1 {
		return fmt.Sprintf("%d permits held by %s", i.Holders, labels(i))
	}
	return "owner " + ownerText(i)
}

// waiters is how many processes wait in line, and what the first call themselves, at the end of a
// sentence.
func waiters(i inspect.LockInfo) (said string) {
	switch i.Waiting {
	case 0:
		return ""
	case 1:
		said = ", 1 process waits"
	default:
		said = fmt.Sprintf(", %s processes wait", inspect.Count(int64(i.Waiting)))
	}
	if len(i.WaitingOwners) > 0 {
		var all []string
		for _, label := range i.WaitingOwners {
			all = append(all, show(label))
		}
		said += ", the first in line: " + strings.Join(all, ", ")
	}
	return said
}

func (a *app) locksCommand() *cobra.Command {
	var match string
	var limit int
	c := &cobra.Command{
		Use: "locks", Short: "List the locks that are held",
		Long: `List the locks that are held, with the time after which they are free at the latest (TTL), what their holders call
themselves (WithOwner), how many permits are held (WithPermits), and how many processes wait in line. They are found by SCAN, a thousand keys at a time, on each primary.`,
		Example: `  sluice locks --match 'stock:*'`,
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1_000_000 {
				return usagef("--limit is 1 to 1000000")
			}
			return a.locks(cmd.Context(), match, limit)
		},
	}
	c.Flags().StringVar(&match, "match", "", "only names that match: * is any text, ? one byte, [ab] one of those")
	c.Flags().IntVar(&limit, "limit", 1000, "how many to show, at the most")
	return c
}

func (a *app) locks(ctx context.Context, match string, limit int) error {
	rdb, err := a.connect(ctx)
	if err != nil {
		return err
	}
	infos, incomplete := inspect.Locks(ctx, rdb, a.options, match, limit+1)
	if incomplete != nil && !errors.Is(incomplete, inspect.ErrIncomplete) {
		return incomplete
	}
	more := len(infos) > limit
	infos = infos[:min(limit, len(infos))]
	if a.json {
		j := locksJSON{Locks: []lockJSON{}, Complete: !more && incomplete == nil}
		for _, i := range infos {
			j.Locks = append(j.Locks, toLockJSON(i, true))
		}
		if err := report.Print(a.out, j); err != nil {
			return err
		}
		return incomplete
	}
	if len(infos) > 0 {
		_, _ = fmt.Fprintln(a.out, tableWithin(a.width(), []column[inspect.LockInfo]{
			{"name", false, func(i inspect.LockInfo) any { return show(i.Name) }},
			{"ttl", true, func(i inspect.LockInfo) any { return ttlText(i.TTL) }},
			{"owner", false, func(i inspect.LockInfo) any { return short(ownerText(i), 80) }},
			{"waiting", true, func(i inspect.LockInfo) any { return i.Waiting }},
		}, infos))
	} else {
		_, _ = fmt.Fprintf(a.errOut, "No lock is held whose key begins with %s at %s.\n", show(a.lockPrefix), a.where())
	}
	if more {
		_, _ = fmt.Fprintf(a.errOut, "There are more: raise --limit, or narrow it with --match.\n")
	}
	return incomplete
}

// withLocker calls do with a Locker.
func (a *app) withLocker(ctx context.Context, do func(l *sluice.Locker) error) error {
	rdb, err := a.connect(ctx)
	if err != nil {
		return err
	}
	l, err := sluice.NewLocker(rdb, sluice.WithLockPrefix(a.lockPrefix))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	return do(l)
}

func (a *app) lockCommand() *cobra.Command {
	return &cobra.Command{
		Use: "lock NAME", Short: "Say whether a lock is held, for how long and by whom, and how many processes wait",
		Long: `Say whether a lock is held, for how long at the most, what its holder calls itself, or how many permits of it
are held and by whom, and how many processes wait in line for it. How many permits it has at most is not stored: the programs know. A lock that is free is exit code 3.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			lock, err := a.argument(args[0])
			if err != nil {
				return err
			}
			return a.withLocker(cmd.Context(), func(l *sluice.Locker) error {
				info, held, err := inspect.Lock(cmd.Context(), l, lock)
				if err != nil {
					return err
				}
				if a.json {
					if err := report.Print(a.out, toLockJSON(info, held)); err != nil {
						return err
					}
				} else if held {
					_, _ = fmt.Fprintf(a.out, "%s: held, ttl %s, %s%s\n", show(lock), ttlText(info.TTL), holders(info), waiters(info))
				}
				if !held {
					return fmt.Errorf("%w: the lock %s is free%s", errNotFound, show(lock), waiters(info))
				}
				return nil
			})
		},
	}
}

func (a *app) unlockCommand() *cobra.Command {
	var force, dryRun bool
	var owner string
	c := &cobra.Command{
		Use: "unlock NAME --force", Short: "Free a lock, whichever process holds it",
		Long: `Free a lock, whichever process holds it. The holder is not asked. It believes in the lock until it next extends or releases
it, so that two may work at once: stop it first, unless a fence guards what it writes. --if-owner frees it only while the
owner that you have seen holds it, and not the next one.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			lock, err := a.argument(args[0])
			if err != nil {
				return err
			}
			if owner, err = a.argument(owner); err != nil {
				return err
			}
			if cmd.Flags().Changed("if-owner") && owner == "" {
				return usagef("--if-owner names the owner from which it is taken: it is empty")
			}
			if !force && !dryRun {
				return usagef("unlock frees %s without asking its holder, which may be at work: if that is meant, add --force", show(lock))
			}
			return a.withLocker(cmd.Context(), func(l *sluice.Locker) error { return a.unlock(cmd.Context(), l, lock, owner, dryRun) })
		},
	}
	c.Flags().BoolVar(&force, "force", false, "do it")
	c.Flags().StringVar(&owner, "if-owner", "", "only if its holder calls itself so")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return c
}

type unlockJSON struct {
	Action string   `json:"action"`
	DryRun bool     `json:"dry_run"`
	Done   bool     `json:"done"`
	Was    lockJSON `json:"was"`
}

func (a *app) unlock(ctx context.Context, l *sluice.Locker, lock, owner string, dryRun bool) error {
	info, held, err := inspect.Lock(ctx, l, lock)
	if err != nil {
		return err
	}
	if held && owner != "" && !slices.Contains(info.Owners, owner) {
		return fmt.Errorf("%w: the lock %s is not held by %s, but by %s", errNotConfirmed, show(lock), show(owner), ownerText(info))
	}
	released := false
	if held && !dryRun {
		if owner == "" {
			released, err = l.ForceUnlock(ctx, lock)
		} else {
			released, err = l.ForceUnlockFrom(ctx, lock, owner)
		}
		if err != nil {
			return err
		}
	}
	if a.json {
		if err := report.Print(a.out, unlockJSON{Action: "unlock", DryRun: dryRun, Done: released, Was: toLockJSON(info, held)}); err != nil {
			return err
		}
	}
	if held && !released && !dryRun && owner != "" {
		return fmt.Errorf("%w: the lock %s was given back, or taken by another owner, meanwhile", errNotConfirmed, show(lock))
	}
	if !held || !dryRun && !released {
		return fmt.Errorf("%w: the lock %s is free", errNotFound, show(lock))
	}
	if !a.json {
		verb := "freed"
		if dryRun {
			verb = "would be freed"
		}
		_, _ = fmt.Fprintf(a.out, "%s: %s (ttl was %s, %s)\n", show(lock), verb, ttlText(info.TTL), holders(info))
	}
	return nil
}
