package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// What commands the program sends. Beside them, HELLO and AUTH are open to every user. The order
// is that in which the rule is printed.
var (
	readCommands  = []string{"+evalsha", "+eval", "+ping", "+time", "+scan", "+type", "+exists", "+get", "+pttl", "+hget", "+hmget", "+hgetall", "+hlen", "+zcard", "+zcount", "+zrange", "+zrangebyscore", "+zrangebylex", "+zlexcount", "+zscore", "+zmscore"}
	writeCommands = []string{"+zadd", "+zrem", "+hset", "+hdel", "+set", "+del", "+unlink", "+rename", "+publish", "+hincrby", "+pexpire"}
	// On a Cluster also these.
	clusterCommands      = []string{"+cluster|slots", "+command", "+asking"}
	clusterWriteCommands = []string{"+spublish", "+pubsub|numsub"}
)

// aclRule returns the words of the access rule behind the user's name, but for its password.
func aclRule(o inspect.Options, write, cluster bool) []string {
	lock, queue := inspect.Literal(o.LockKeys()), inspect.Literal(o.QueueKeys())
	words := []string{"reset", "on", "resetchannels", "~" + queue + "*", "~{" + queue + "*}:*", "~" + lock + "*", "~{" + lock + "*}:line"}
	if write {
		words = append(words, "&"+queue+"*", "&{"+queue+"*}:*", "&"+lock+"*", "&{"+lock+"*}:*")
	}
	words = append(words, readCommands...)
	if write {
		words = append(words, writeCommands...)
	}
	if cluster {
		words = append(words, clusterCommands...)
	}
	if cluster && write {
		words = append(words, clusterWriteCommands...)
	}
	return words
}

type aclJSON struct {
	User  string   `json:"user"`
	Write bool     `json:"write"`
	Rule  []string `json:"rule"`
}

func (a *app) aclCommand() *cobra.Command {
	var write bool
	user := ""
	c := &cobra.Command{
		Use: "acl", Short: "Print the access rule that an operator's user needs",
		Long: `Print the access rule that an operator's user needs: for all commands that look (top, queues, workers, ls, get, locks, lock, serve, stock, and limit without flags),
or with --write for all commands. It is for the prefixes that are set, and with --cluster for a Cluster. An
administrator sets it on each server, with another password. It sends nothing.

A user that may look may read every task and lock with other programs too, payloads and tokens included: Redis has
no rule for a part of a key.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(_ *cobra.Command, _ []string) error {
			if user == "" {
				user = "sluice-viewer"
				if write {
					user = "sluice-operator"
				}
			}
			rule := aclRule(a.options, write, a.server.Cluster)
			if a.json {
				return report.Print(a.out, aclJSON{user, write, rule})
			}
			words := []string{"redis-cli", "ACL", "SETUSER", shellWord(user), "reset", "on", "'>CHANGE-ME'"}
			for _, word := range rule[2:] {
				words = append(words, shellWord(word))
			}
			_, err := fmt.Fprintln(a.out, strings.Join(words, " "))
			return err
		},
	}
	c.Flags().BoolVar(&write, "write", false, "for the commands that change something too")
	c.Flags().StringVar(&user, "user", "", "the user's name (sluice-viewer, or with --write sluice-operator)")
	return c
}

// shellWord quotes a word for a shell.
func shellWord(word string) string {
	const plain = "+-_.:/,@%="
	if word != "" && strings.IndexFunc(word, func(r rune) bool {
		return !strings.ContainsRune(plain, r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0 {
		return word
	}
	for _, r := range word {
		if r < ' ' || r > '~' { // what a terminal would act on
			return "$'" + strings.ReplaceAll(strings.Trim(fmt.Sprintf("%+q", word), `"`), "'", `\'`) + "'"
		}
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
