package gozero

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/sluice-go/sluice"
)

// ServiceContext is what Sluice needs in a service's own ServiceContext: embed it there. A process
// needs one for each Redis.
type ServiceContext struct {
	Redis  goredis.UniversalClient // for sluice.NewQueue
	Locker *sluice.Locker
}

// NewServiceContext connects to the Redis of a configuration. The client is not that of go-zero's
// own redis.Redis, whose circuit breaker would refuse to extend locks and leases after errors of
// other commands. With Tls, the certificate is verified, which go-zero does not do.
//
// Without NonBlock it fails when sluice.Locker.Check does within PingTimeout; else it does not wait.
func NewServiceContext(conf redis.RedisConf, options ...sluice.LockOption) (*ServiceContext, error) {
	client, err := newClient(conf)
	if err != nil {
		return nil, err
	}
	locker, err := sluice.NewLocker(client, options...)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s := &ServiceContext{Redis: client, Locker: locker}
	if conf.NonBlock {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(conf.PingTimeout, time.Second))
	defer cancel()
	if err := locker.Check(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close releases the locks that are held, and closes the client. Call it when the ServiceGroup's
// Start has returned: handlers may use both until then.
func (s *ServiceContext) Close() error { return errors.Join(s.Locker.Close(), s.Redis.Close()) }

func newClient(conf redis.RedisConf) (goredis.UniversalClient, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	options := &goredis.UniversalOptions{
		Addrs:                    []string{conf.Host},
		Username:                 conf.User,
		Password:                 conf.Pass,
		Protocol:                 conf.Protocol,
		DisableIdentity:          conf.DisableIdentity,
		ReadTimeout:              time.Second, // until it ends, a command without a reply keeps its connection
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.Mode(cmp.Or(conf.MaintNotifications, "disabled"))},
	}
	if conf.Tls {
		options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	switch conf.Type {
	case redis.NodeType:
		return goredis.NewClient(options.Simple()), nil
	case redis.ClusterType:
		options.Addrs = strings.FieldsFunc(conf.Host, func(r rune) bool { return r == ',' || r == ' ' })
		return goredis.NewClusterClient(options.Cluster()), nil
	}
	return nil, fmt.Errorf("gozero: no Redis of type %q: use %s or %s", conf.Type, redis.NodeType, redis.ClusterType)
}
