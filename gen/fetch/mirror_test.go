// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sourcesFile = `Types: deb
URIs: http://vendor.test/debian
Suites: bookworm
Components: main
Signed-By: /keys/vendor.gpg

# Enabled entries only
Types: deb
uris: http://mirror.test/debian
Suites: bookworm
Enabled: no
Signed-By: /keys/old.gpg

Types: deb
uris: http://other.test/debian http://mirror.test/debian
suites: bookworm bookworm-updates
components: main
trusted: yes
# in between
signed-by:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
`

const listFile = `# deb [signed-by=/keys/off.gpg] http://mirror.test/debian bookworm main
deb-src [signed-by=/keys/src.gpg] http://mirror.test/debian bookworm main
deb http://plain.test/debian bookworm main
deb [signed-by=/keys/tight.gpg] http://tight.test/debian bookworm main
deb [ arch=amd64 signed-by=/keys/a.gpg,/keys/b.gpg trusted=yes ] http://mirror.test/debian/ bookworm main
`

func TestMirrors(t *testing.T) {
	dir := t.TempDir()
	sources, list := filepath.Join(dir, "debian.sources"), filepath.Join(dir, "sources.list")
	write(t, sources, []byte(sourcesFile))
	write(t, list, []byte(listFile))
	const vendor = "http://vendor.test/debian/"
	const other = "http://other.test/pub/debian/"
	for _, c := range []struct {
		name           string
		fresh, targets string
		want           []mirror
	}{
		{
			name: "labels name it among several",
			fresh: target(vendor, "bookworm", "", "x:1") + target(security, "bookworm-security", "", "x:1") +
				target(debian, "bookworm", "", "x:1"),
			targets: target(vendor, "bookworm", "Vendor", "x:1") +
				target(security, "bookworm-security", "Debian-Security", "x:1") +
				target(debian, "bookworm", "Debian", "x:1"),
			want: []mirror{{uri: debian}},
		},
		{
			name: "without lists, a suite with -updates distinguishes it from a vendor",
			fresh: target(vendor, "bookworm", "", "x:1") + target(security, "bookworm-security", "", "x:1") +
				target(debian, "bookworm", "", "x:1") + target(debian, "bookworm-updates", "", "x:1") +
				target("http://last.test/debian/", "bookworm", "", "x:1"),
			want: []mirror{{uri: debian}},
		},
		{
			name:  "without lists, the address distinguishes it from a vendor",
			fresh: target("http://vendor.test/apt/", "stable", "", "x:1") + target(debian, "bookworm", "", "x:1"),
			want:  []mirror{{uri: debian}},
		},
		{
			name:  "two similar repositories are both candidates",
			fresh: target(debian, "bookworm", "", "x:1") + target(other, "sid", "", "x:1"),
			want:  []mirror{{uri: debian}, {uri: other}},
		},
		{
			name:  "a mirror recognized by its suite alone",
			fresh: target("mirror+file:///etc/apt/mirrors/list", "trixie", "", "x:1"),
			want:  []mirror{{uri: "mirror+file:///etc/apt/mirrors/list"}},
		},
		{
			name:  "keys of a .sources file, including a block",
			fresh: target(debian, "bookworm", "", sources+":3"),
			want: []mirror{{uri: debian, trust: "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n" +
				" -----END PGP PUBLIC KEY BLOCK-----\nTrusted: yes\n"}},
		},
		{
			name:  "keys of a .list file",
			fresh: target(debian, "bookworm", "", list+":5"),
			want:  []mirror{{uri: debian, trust: "Signed-By: /keys/a.gpg,/keys/b.gpg\nTrusted: yes\n"}},
		},
		{
			name:  "keys of a .list file, written without spaces",
			fresh: target("http://tight.test/debian/", "bookworm", "", list+":4"),
			want:  []mirror{{uri: "http://tight.test/debian/", trust: "Signed-By: /keys/tight.gpg\n"}},
		},
		{
			name:  "a .list file without keys",
			fresh: target("http://plain.test/debian/", "bookworm", "", list+":3"),
			want:  []mirror{{uri: "http://plain.test/debian/"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := fakeApt(t)
			write(t, filepath.Join(dir, "targets-fresh"), []byte(c.fresh))
			write(t, filepath.Join(dir, "targets"), []byte(c.targets))
			a, err := newApt("9.0", t.TempDir())
			require.NoError(t, err)
			got, err := a.mirrors(context.Background(), []string{"sid"})
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestMirrorHidesPassword(t *testing.T) {
	assert.Equal(t, "https://me:xxxxx@mirror.test/debian/",
		mirror{uri: "https://me:secret@mirror.test/debian/"}.String())
}
