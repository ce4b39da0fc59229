package redistest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Authority is a certificate authority of a test's own.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes one that nobody knows yet.
func NewAuthority() (*Authority, error) {
	a := &Authority{}
	var err error
	a.certificate, a.key, err = a.issue("authority", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a, err
}

// issue makes a certificate, signed by the authority or, if that has none yet, by
// itself.
func (a *Authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return certificate, key, err
}

// Trust is what a client is told that is to trust this authority and nobody else.
func (a *Authority) Trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// settings writes a certificate for a host on loopback into dir, and returns what
// redis-server needs to be told about it.
func (a *Authority) settings(dir string, host *x509.Certificate) ([]string, error) {
	certificate, key, err := a.issue("server", host)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var settings []string
	for _, part := range []struct {
		setting, kind string
		content       []byte
	}{
		{"--tls-cert-file", "CERTIFICATE", certificate.Raw},
		{"--tls-key-file", "PRIVATE KEY", der},
		{"--tls-ca-cert-file", "CERTIFICATE", a.certificate.Raw},
	} {
		file := filepath.Join(dir, part.setting[len("--"):]+".pem")
		content := pem.EncodeToMemory(&pem.Block{Type: part.kind, Bytes: part.content})
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return nil, err
		}
		settings = append(settings, part.setting, file)
	}
	return append(settings, "--tls-auth-clients", "no"), nil
}

// StartTLS starts a real server of the test's own that speaks TLS and nothing else,
// with a certificate of the authority for 127.0.0.1.
func StartTLS(t testing.TB, a *Authority) *Server {
	t.Helper()
	settings, err := a.settings(t.TempDir(), &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	s := Start(t, settings...)
	if err := s.secure(a); err != nil {
		t.Fatal(err)
	}
	s.Addr = s.tlsAddr
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, TLSConfig: s.tls})
	defer func() { _ = rdb.Close() }()
	if err := rdb.ConfigSet(context.Background(), "port", "0").Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

// secure has a server that was started with the authority's settings listen for TLS
// too.
func (s *Server) secure(a *Authority) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = rdb.Close() }()
	err = errors.New("not tried")
	for range 5 { // the port may be taken between finding and using it
		if err == nil {
			return nil
		}
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		s.tls, s.tlsAddr = a.Trust(), listener.Addr().String()
		_ = listener.Close()
		_, port, _ := net.SplitHostPort(s.tlsAddr)
		err = rdb.ConfigSet(context.Background(), "tls-port", port).Err()
	}
	return err
}
