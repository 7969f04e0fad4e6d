// SPDX-License-Identifier: Apache-2.0

package peerauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // hashes of the algorithms below
	_ "crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// algorithms are those that an API server signs tokens by, with their hash. Who asks which one it
// is has the key decide, not the token: an algorithm counts for keys of its own kind alone.
var algorithms = map[string]struct {
	hash  crypto.Hash
	curve elliptic.Curve // nil = RSA
}{
	"RS256": {crypto.SHA256, nil}, "RS384": {crypto.SHA384, nil}, "RS512": {crypto.SHA512, nil},
	"ES256": {crypto.SHA256, elliptic.P256()}, "ES384": {crypto.SHA384, elliptic.P384()}, "ES512": {crypto.SHA512, elliptic.P521()},
}

// publicKey is a key by which tokens are signed.
type publicKey struct {
	id  string
	key crypto.PublicKey // *rsa.PublicKey or *ecdsa.PublicKey
}

// leastRSA is the least size of an RSA key, bits.
const leastRSA = 2048

// parseKeys reads a JWK Set (RFC 7517). Keys of other kinds are left out.
func parseKeys(text []byte) ([]publicKey, error) {
	if len(text) > maxKeys {
		return nil, fmt.Errorf("%d bytes", len(text))
	}
	var set struct {
		Keys []struct{ Kty, Kid, Use, N, E, Crv, X, Y string } `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	var out []publicKey
	for _, k := range set.Keys {
		if k.Use != "" && k.Use != "sig" {
			continue
		}
		switch k.Kty {
		case "RSA":
			n, err1 := number(k.N)
			e, err2 := number(k.E)
			if err := errors.Join(err1, err2); err != nil || n.BitLen() < leastRSA || !e.IsInt64() || e.Int64() < 3 || e.Int64() > 1<<31-1 {
				return nil, fmt.Errorf("key %q is no RSA key of %d bits or more (%w)", k.Kid, leastRSA, err)
			}
			out = append(out, publicKey{k.Kid, &rsa.PublicKey{N: n, E: int(e.Int64())}})
		case "EC":
			curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[k.Crv]
			if curve == nil {
				continue
			}
			x, err1 := coordinate(k.X, curve)
			y, err2 := coordinate(k.Y, curve)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("key %q: %w", k.Kid, err)
			}
			key, err := ecdsa.ParseUncompressedPublicKey(curve, append(append([]byte{4}, x...), y...))
			if err != nil {
				return nil, fmt.Errorf("key %q: %w", k.Kid, err)
			}
			out = append(out, publicKey{k.Kid, key})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no key of a known kind")
	}
	return out, nil
}

func number(text string) (*big.Int, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	return new(big.Int).SetBytes(b), err
}

// coordinate returns a coordinate of a point in the curve's length.
func coordinate(text string, curve elliptic.Curve) ([]byte, error) {
	n, err := number(text)
	if err != nil {
		return nil, err
	}
	size := (curve.Params().BitSize + 7) / 8
	if n.BitLen() > size*8 {
		return nil, fmt.Errorf("a coordinate of %d bits", n.BitLen())
	}
	return n.FillBytes(make([]byte, size)), nil
}

// verify returns what a token in the compact form of RFC 7515 says, when one of the keys signed it.
func verify(token string, keys []publicKey) ([]byte, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errors.New("the token is no signed one")
	}
	var decoded [3][]byte
	for i, p := range parts {
		var err error
		if decoded[i], err = base64.RawURLEncoding.DecodeString(p); err != nil {
			return nil, fmt.Errorf("the token is no signed one: %w", err)
		}
	}
	var header struct {
		Alg, Kid string
		Crit     []string
	}
	if err := json.Unmarshal(decoded[0], &header); err != nil {
		return nil, fmt.Errorf("the token's header: %w", err)
	}
	alg, ok := algorithms[header.Alg]
	if !ok || len(header.Crit) > 0 {
		return nil, fmt.Errorf("the token is signed by an algorithm that is not known, %q", header.Alg)
	}
	h := alg.hash.New()
	h.Write([]byte(parts[0] + "." + parts[1]))
	sum := h.Sum(nil)
	for _, k := range keys {
		if header.Kid != "" && k.id != header.Kid {
			continue
		}
		switch key := k.key.(type) {
		case *rsa.PublicKey:
			if alg.curve == nil && rsa.VerifyPKCS1v15(key, alg.hash, sum, decoded[2]) == nil {
				return decoded[1], nil
			}
		case *ecdsa.PublicKey:
			size := (key.Curve.Params().BitSize + 7) / 8
			if alg.curve == key.Curve && len(decoded[2]) == 2*size &&
				ecdsa.Verify(key, sum, new(big.Int).SetBytes(decoded[2][:size]), new(big.Int).SetBytes(decoded[2][size:])) {
				return decoded[1], nil
			}
		}
	}
	return nil, errors.New("none of the API server's keys signed the token")
}
