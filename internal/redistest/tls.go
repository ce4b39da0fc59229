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
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Authority is a certificate authority for one test.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns a new certificate authority, which no client trusts yet.
func NewAuthority() (*Authority, error) {
	a := &Authority{}
	var err error
	a.certificate, a.key, err = a.issue("authority", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a, err
}

// issue makes a certificate that the authority signs. The authority's own certificate,
// the first one, is signed with its own key.
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

// Trust returns a client's TLS settings that trust this authority and no other.
func (a *Authority) Trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// settings writes a certificate for a host on loopback into dir, and returns
// redis-server's settings for it.
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

// StartTLS starts a real server for one test that accepts TLS connections only, with a
// certificate of the authority for 127.0.0.1.
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

// secure makes a server listen for TLS too, on a port of its own. The server must have
// been started with the authority's settings.
func (s *Server) secure(a *Authority) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = rdb.Close() }()
	var err error
	for range 5 { // another process may take the port between finding and using it
		if s.tlsAddr, err = freeAddr(); err != nil {
			return err
		}
		_, port, _ := net.SplitHostPort(s.tlsAddr)
		if err = rdb.ConfigSet(context.Background(), "tls-port", port).Err(); err == nil {
			s.tls = a.Trust()
			return nil
		}
	}
	return err
}
