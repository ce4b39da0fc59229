package inspect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Server says how a Redis is reached beside its URL. The zero value is right for a single
// server whose URL has all that is needed.
type Server struct {
	// Cluster says that the addresses are nodes of a Redis Cluster.
	Cluster bool
	// SentinelMaster is the name of the master that sentinels watch. The URL then names
	// the sentinels.
	SentinelMaster string
	// SentinelUsername and SentinelPassword are for the sentinels; the URL's are for Redis.
	SentinelUsername, SentinelPassword string
	// Username and Password replace those of the URL.
	Username, Password string
	// CAFile is a file of certificates, in PEM, of the authorities to trust instead of the
	// system's. CertFile and KeyFile are the client's own.
	CAFile, CertFile, KeyFile string
	// ServerName is the name that the server's certificate must have. Defaults to the
	// first host of the URL; for sentinels and Clusters it is the host of each server.
	ServerName string
}

// ErrURL says that the address of the server cannot be used. Its text never holds a part of the
// address: a password with a slash would be in the port.
var ErrURL = errors.New("the server's URL cannot be used")

// poolSize is how many connections an operator's client has at the most for each server.
const poolSize = 16

// Connect returns a client, which is the caller's to close. It sends nothing. The URL is
//
//	redis://[user:password@]host[:port][,host[:port]...][/db]
//
// or the same with rediss, for TLS, or unix:///path. Several hosts are a Cluster, or
// the sentinels of s.SentinelMaster. The error is ErrURL, or that of a file of certificates;
// it holds no password.
func Connect(rawURL string, s Server) (redis.UniversalClient, error) {
	o, err := s.options(rawURL)
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(o), nil
}

// IsClusterNode reports whether a server is a node of a Cluster: it does not serve all keys, so that it
// would show a part of the queues and locks. It asks for keys that no program has; a user who may not read
// such, or gets no answer, learns of it by the first command.
func IsClusterNode(ctx context.Context, rdb redis.UniversalClient, o Options) bool {
	if _, single := rdb.(*redis.Client); !single {
		return false
	}
	replies, _ := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 32 {
			p.Exists(ctx, fmt.Sprint(o.QueueKeys(), "?", i))
			p.Exists(ctx, fmt.Sprint(o.LockKeys(), "?", i))
		}
		return nil
	})
	for _, reply := range replies {
		if _, moved := redis.IsMovedError(reply.Err()); moved {
			return true
		}
	}
	return false
}

// options reads the URL.
func (s Server) options(rawURL string) (*redis.UniversalOptions, error) {
	u, hosts, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	o := &redis.UniversalOptions{
		Addrs: hosts, Username: u.User.Username(), MasterName: s.SentinelMaster, IsClusterMode: s.Cluster,
		SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword,
		PoolSize: poolSize, ContextTimeoutEnabled: true, DialTimeout: 3 * time.Second, ReadTimeout: 5 * time.Second,
		DialerRetries: 2, MaxRetries: 1, // an operator who waits wants to know
		// What an operator's client would send beside its work: an access rule would have to allow
		// it.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	o.Password, _ = u.User.Password()
	if s.Username != "" {
		o.Username = s.Username
	}
	if s.Password != "" {
		o.Password = s.Password
	}
	if o.DB, err = database(u); err != nil {
		return nil, err
	}
	if len(hosts) > 1 && s.SentinelMaster == "" {
		o.IsClusterMode = true
	}
	switch {
	case s.Cluster && s.SentinelMaster != "":
		return nil, fmt.Errorf("%w: a server is in a Cluster or behind Sentinel, not both", ErrURL)
	case o.Username != "" && o.Password == "":
		// go-redis would not name the user at all, and be the default one.
		return nil, fmt.Errorf("%w: there is a user and no password", ErrURL)
	case o.IsClusterMode && o.DB != 0:
		return nil, fmt.Errorf("%w: a Cluster has database 0 only", ErrURL)
	}
	switch {
	case u.Scheme == "rediss":
		o.TLSConfig, err = s.tls(hosts)
	case s.CAFile != "" || s.CertFile != "" || s.KeyFile != "" || s.ServerName != "":
		return nil, fmt.Errorf("%w: there are settings for TLS, and its scheme is not rediss", ErrURL)
	}
	return o, err
}

// parseURL returns the URL and its hosts, each with its port.
func parseURL(rawURL string) (*url.URL, []string, error) {
	const help = `write redis://host:6379 or rediss://user@host:6379/0, several hosts with commas between them; in a password, write / @ : # with percent signs: %2F %40 %3A %23`
	scheme, rest, found := strings.Cut(rawURL, "://")
	if !found {
		return nil, nil, fmt.Errorf("%w: %s", ErrURL, help)
	}
	if scheme == "unix" {
		if u, err := url.Parse(rawURL); err == nil && u.Path != "" {
			return &url.URL{Scheme: scheme, User: u.User, RawQuery: u.RawQuery}, []string{u.Path}, nil
		}
		return nil, nil, fmt.Errorf("%w: write unix:///path/of/the/socket", ErrURL)
	}
	if scheme != "redis" && scheme != "rediss" {
		return nil, nil, fmt.Errorf("%w: its scheme is not redis, rediss or unix", ErrURL)
	}
	// url.Parse knows one host only.
	authority, path := rest, ""
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		authority, path = rest[:at], rest[at:]
	}
	user := ""
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, authority = authority[:at+1], authority[at+1:]
	}
	u, err := url.Parse(scheme + "://" + user + "host" + path)
	if err != nil || u.Fragment != "" {
		return nil, nil, fmt.Errorf("%w: %s", ErrURL, help)
	}
	var hosts []string
	for host := range strings.SplitSeq(authority, ",") {
		address, ok := hostPort(host)
		if !ok {
			return nil, nil, fmt.Errorf("%w: %s", ErrURL, help)
		}
		hosts = append(hosts, address)
	}
	return u, slices.Compact(hosts), nil
}

// hostPort returns a host with its port, and whether it has the form of one.
func hostPort(host string) (string, bool) {
	u, err := url.Parse("redis://" + host)
	if err != nil || u.User != nil || u.Path != "" || u.Hostname() == "" && host != "" {
		return "", false
	}
	name, port := u.Hostname(), u.Port()
	if name == "" {
		name = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false
	}
	return net.JoinHostPort(name, port), true
}

// database returns the number of the database, by the path or ?db=. Nothing else may be in the
// query: a setting that would be ignored is worse than an error.
func database(u *url.URL) (int, error) {
	text := strings.Trim(u.Path, "/")
	query := u.Query()
	if text == "" {
		text = query.Get("db")
	}
	query.Del("db")
	if len(query) > 0 {
		return 0, fmt.Errorf("%w: it has settings behind ? that are not known", ErrURL)
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%w: what stands behind the host is not the number of a database; a / of a password has to be written %%2F", ErrURL)
	}
	return int(n), nil
}

// tls returns the settings of a rediss URL.
func (s Server) tls(hosts []string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if config.ServerName == "" && len(hosts) == 1 && !s.Cluster && s.SentinelMaster == "" {
		config.ServerName, _, _ = net.SplitHostPort(hosts[0])
	}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the authorities' certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the authorities' certificates: none in %q", s.CAFile)
		}
	}
	if s.CertFile != "" || s.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("the client's certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
