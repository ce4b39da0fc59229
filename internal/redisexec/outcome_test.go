package redisexec

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// classified returns what becomes of a command with that error.
func classified(err error, isWritten bool) Result {
	c := &command{Cmd: redis.NewCmd(context.Background(), "get", "key")}
	if isWritten {
		c.sending.Store(written)
	}
	return c.classify(err)
}

// TestOutcome_OfEachKindOfError: Redis 6 wraps what a script meets, with the script's
// name and line in front.
func TestOutcome_OfEachKindOfError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Outcome{
		"READONLY You can't write against a read only replica.":                           Unavailable,
		"LOADING Redis is loading the dataset in memory":                                  Unavailable,
		"TRYAGAIN Multiple keys request during rehashing of slot":                         Unavailable,
		"CLUSTERDOWN The cluster is down":                                                 Unavailable,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'": Unavailable,
		"ERR Error running script (call to f_1): @user_script:5: -READONLY You can't":     Unavailable,
		"ERR Error running script (call to f_1): @user_script:5: -LOADING Redis is":       Unavailable,
		"ERR Error running script (call to f_1): @user_script:5: -CLUSTERDOWN The":        Unavailable,
		"ERR Error running script (call to f_1): @user_script:5: -OOM command not":        Rejected,
		"ERR Error running script (call to f_1): @user_script:5: READONLY, he said":       Rejected,
		"ERR unknown command READONLY":                                                    Rejected,
		"ERR something: -READONLY is not at the start":                                    Rejected,
		"OOM command not allowed when used memory > 'maxmemory'.":                         Rejected,
		"NOPERM this user has no permissions to run the 'set' command":                    Rejected,
		"WRONGTYPE Operation against a key holding the wrong kind of value":               Rejected,
		"NOAUTH Authentication required.":                                                 Rejected,
		"MISCONF Redis is configured to save RDB snapshots":                               Unavailable,
		"NOREPLICAS Not enough good replicas to write.":                                   Unavailable,
		"ERR max number of clients reached":                                               Unavailable,
		"BUSYKEY Target key name already exists.":                                         Rejected,
		"NOSCRIPT No matching script. Please use EVAL.":                                   Rejected,
		"BUSY Redis is busy running a script.":                                            Unavailable,
	} {
		require.Equal(t, want, classified(serverError(text), true).Outcome, text)
		wrapped := classified(fmt.Errorf("pipeline: %w", serverError(text)), true)
		if want == Rejected {
			require.Equal(t, Rejected, wrapped.Outcome, "wrapped by the client: %s", text)
		}
		if want == Rejected {
			want = NotSent
		}
		require.Equal(t, want, classified(serverError(text), false).Outcome, "while the connection was set up: %s", text)
	}
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		err     error
		written bool
		want    Outcome
	}{
		{nil, true, Done},
		{redis.Nil, true, Done},
		{io.EOF, true, Unknown},
		{&net.OpError{Op: "read", Err: errTimeout}, true, Unknown},
		{&net.OpError{Op: "write", Err: errTimeout}, true, Unknown},
		{context.DeadlineExceeded, true, Unknown},
		{context.Canceled, false, NotSent},
		{redis.ErrPoolTimeout, false, NotSent},
		{redis.ErrClosed, false, NotSent},
		// A Cluster's client reads the arguments beforehand, and so does an autopipeline.
		{redis.ErrPoolTimeout, true, NotSent},
		{redis.ErrPoolExhausted, true, NotSent},
		{redis.ErrClosed, true, NotSent},
		{errors.New(queueFull), true, NotSent},
		{fmt.Errorf("node: %w", errors.New(queueFull)), true, NotSent},
		{fmt.Errorf("node: %w", redis.ErrPoolTimeout), true, NotSent},
		{dial, false, NotSent},
		{dial, true, NotSent},
		{fmt.Errorf("node: %w", dial), true, NotSent},
	} {
		result := classified(test.err, test.written)
		require.Equal(t, test.want, result.Outcome, "%v", test.err)
		if test.want == Done {
			require.NoError(t, result.Err)
		} else {
			require.ErrorIs(t, result.Err, test.err)
			require.Nil(t, result.Value)
		}
	}
}

// TestOutcome_NothingIsSentByAFullAutopipeline: the text is that of the go-redis with which this is
// compiled, if it has the limit.
func TestOutcome_NothingIsSentByAFullAutopipeline(t *testing.T) {
	t.Parallel()
	options := new(redis.AutoPipelineOptions)
	limit := reflect.ValueOf(options).Elem().FieldByName("MaxQueuedCommands") // from go-redis 9.23 on
	if !limit.IsValid() {
		return
	}
	limit.SetInt(1)
	over := make(chan struct{})
	rdb := redis.NewClient(&redis.Options{AutoPipelineOptions: options, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-over
		return nil, io.EOF
	}})
	defer func() { _ = rdb.Close() }()
	defer close(over)
	auto, err := rdb.AutoPipeline()
	require.NoError(t, err)
	results := make(chan Result, 2)
	for range cap(results) { // one is queued, and the other refused: that one returns first
		go func() { // ends when the dial is over, and Close of the client waits for it
			c := &command{Cmd: redis.NewCmd(t.Context(), "get", "key")}
			results <- c.classify(auto.Process(t.Context(), c))
		}()
	}
	result := <-results
	require.ErrorContains(t, result.Err, "queue full")
	require.Equal(t, NotSent, result.Outcome)
	require.ErrorIs(t, result.Final(), ErrUnavailable)
}

// TestOutcome_UnavailableIsWhatMayPass: nothing was carried out, and trying later may help.
func TestOutcome_UnavailableIsWhatMayPass(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		err     error
		written bool
		want    error // ErrUnavailable, ErrUnknown, or nil for the error as it is
	}{
		{nil, true, nil},
		{dial, false, ErrUnavailable},
		{redis.ErrPoolTimeout, false, ErrUnavailable},
		{redis.ErrPoolExhausted, true, ErrUnavailable},
		{errTimeout, false, ErrUnavailable}, // while the connection was set up
		{io.EOF, false, ErrUnavailable},
		{serverError("ERR max number of clients reached"), false, ErrUnavailable},
		{errLoading, false, ErrUnavailable},
		{errLoading, true, ErrUnavailable},
		{redis.ErrClosed, false, nil},
		{fmt.Errorf("node: %w", redis.ErrClosed), true, nil},
		{serverError("WRONGPASS invalid username-password pair"), false, nil},
		{serverError("NOAUTH Authentication required."), false, nil},
		{serverError("NOPERM this user has no permissions"), true, nil},
		{fmt.Errorf("dial: %w", &tls.CertificateVerificationError{Err: errors.New("bad")}), false, nil},
		{fmt.Errorf("%w: hook", ErrPanicked), false, nil},
		{errors.New("panic in queuedNewConn"), false, nil}, // a dialer's, as go-redis says it
		{errRefused, true, nil},
		{errTimeout, true, ErrUnknown},
		{io.EOF, true, ErrUnknown},
	} {
		final := classified(test.err, test.written).Final()
		require.ErrorIs(t, final, test.err, "the cause")
		for _, sentinel := range []error{ErrUnavailable, ErrUnknown} {
			require.Equal(t, test.want == sentinel, errors.Is(final, sentinel), "%v", test.err) //nolint:errorlint // compared
		}
	}
}

// TestContain_MakesAPanicAnOutcome: of a command that may have been written, Unknown; and
// the error holds no argument.
func TestContain_MakesAPanicAnOutcome(t *testing.T) {
	t.Parallel()
	for _, unwritten := range []bool{false, true} {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			e, notified := New(newServer(answer{panics: true, unwritten: unwritten})), &counter{}
			r := plain(Never)
			r.OnUnknown = notified.outcomeUnknown
			_, err := e.Run(ctx, r)
			require.ErrorIs(t, err, ErrPanicked)
			require.ErrorContains(t, err, "server).Process (line ")
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, !unwritten, errors.Is(err, ErrUnknown))
			require.NotErrorIs(t, err, ErrUnavailable)
			require.Equal(t, map[bool]int{true: 0, false: 1}[unwritten], notified.count())

			result := e.Pipeline(ctx, []Request{r})[0]
			require.ErrorIs(t, result.Err, ErrPanicked)
			require.Equal(t, map[bool]Outcome{true: NotSent, false: Unknown}[unwritten], result.Outcome)
			e.Close(t.Context())
		}
	}
	_, err := New(nil).Run(t.Context(), plain(Never)) // a client that is nil deep inside
	require.ErrorIs(t, err, ErrPanicked)
	require.ErrorContains(t, err, "nil pointer")
}

// exits is a client whose hook ends the goroutine.
type exits struct{ redis.UniversalClient }

func (exits) Process(context.Context, redis.Cmder) error { runtime.Goexit(); return nil }

func TestContain_AHookThatEndsTheGoroutineIsUnknown(t *testing.T) {
	t.Parallel()
	bubble(t, exits{}, func(t *testing.T, e *Executor) {
		_, err := e.Run(t.Context(), plain(Never))
		require.ErrorIs(t, err, ErrUnknown)
	})
}

// brittle is a Cluster's client that panics when it is asked for its nodes.
type brittle struct{ *server }

func (brittle) MasterForKey(context.Context, string) (*redis.Client, error) { panic("secret") }
func (brittle) ReloadState(context.Context)                                 { panic("secret") }

func TestContain_ATopologyThatPanicsIsNone(t *testing.T) {
	t.Parallel()
	e := New(brittle{newServer(noReply)})
	require.Nil(t, e.NodeOf("key"))
	_, err := e.Run(t.Context(), plain(Never))
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorIs(t, err, errTimeout)
	e.Close(t.Context())
}

func TestOutcome_ArgsMeansWritten(t *testing.T) {
	t.Parallel()
	c := &command{Cmd: redis.NewCmd(t.Context(), "get", "key")}
	require.True(t, c.NoRetry())
	require.True(t, c.isUnsent())
	require.Equal(t, []any{"get", "key"}, c.Args())
	require.False(t, c.isUnsent())
	require.False(t, c.withdraw())
}

// TestOutcome_AWithdrawnCommandIsAPing, which changes nothing.
func TestOutcome_AWithdrawnCommandIsAPing(t *testing.T) {
	t.Parallel()
	c := &command{Cmd: redis.NewCmd(t.Context(), "set", "key", 1)}
	require.True(t, c.withdraw())
	require.Equal(t, []any{"ping"}, c.Args())
	require.True(t, c.isUnsent())
}

func TestOutcome_ForeignDataIsErrCorrupt(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"ERR Error running script (call to f_1): @user_script:5: WRONGTYPE Operation against a key holding the wrong kind of value",
		"Operation against a key holding the wrong kind of value", // from miniredis
	} {
		result := classified(serverError(text), true)
		require.ErrorIs(t, result.Err, ErrCorrupt, text)
		require.ErrorIs(t, result.Err, serverError(text))
	}
	require.NotErrorIs(t, classified(errRefused, true).Err, ErrCorrupt)
}

// TestOutcome_ErrorsHoldNoArguments: what "unknown command" repeats may be a token.
func TestOutcome_ErrorsHoldNoArguments(t *testing.T) {
	t.Parallel()
	text := "ERR unknown command 'EVALSHA', with args beginning with: 'digest' '1' 'key' 'secret' "
	for _, written := range []bool{true, false} {
		err := classified(serverError(text), written).Err
		require.EqualError(t, err, "ERR unknown command 'EVALSHA'")
		var server redis.Error
		require.ErrorAs(t, err, &server, "it is still the server's")
	}
}

// TestOutcome_ErrorsQuoteNoReply: what go-redis says of a reply that it cannot parse
// quotes the reply, which may be a payload.
func TestOutcome_ErrorsQuoteNoReply(t *testing.T) {
	t.Parallel()
	_, number := strconv.ParseInt("secret", 10, 64)
	for _, err := range []error{
		number,
		fmt.Errorf("redis: %w", number),
		errors.New(`redis: can't parse reply="secret" reading string`),
		errors.New(`redis: invalid reply: "secret"`),
		errors.New(`expected digit, got 's'`),
		errors.New(`bigInt("secret") value out of range`),
	} {
		result := classified(err, true)
		require.Equal(t, Unknown, result.Outcome, err)
		require.ErrorIs(t, result.Err, errUnreadable)
		require.NotContains(t, result.Err.Error(), "secret")
	}
	require.ErrorIs(t, classified(io.EOF, true).Err, io.EOF, "others are left as they are")
}

func TestReply_IntAndBool(t *testing.T) {
	t.Parallel()
	n, err := Int(int64(-3))
	require.NoError(t, err)
	require.EqualValues(t, -3, n)
	for value, want := range map[int64]bool{1: true, 0: false, 2: false, -1: false} {
		yes, err := Bool(value)
		require.NoError(t, err)
		require.Equal(t, want, yes)
	}
	for _, value := range []any{nil, "secret", []any{"secret"}, 1, true} {
		n, err := Int(value)
		require.ErrorIs(t, err, ErrCorrupt)
		require.Zero(t, n)
		yes, err := Bool(value)
		require.ErrorIs(t, err, ErrCorrupt)
		require.False(t, yes)
		require.NotContains(t, err.Error(), "secret")
		require.Contains(t, Unexpected(value).Error(), fmt.Sprintf("type %T", value))
	}
}
