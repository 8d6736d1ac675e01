// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// target is the output of apt-get indextargets for one Packages file. It has no label if the lists were never updated.
func target(uri, suite, label, entry string) string {
	s := "MetaKey: main/binary-amd64/Packages\nRelease: " + suite +
		"\nComponent: main\nIdentifier: Packages\nRepo-URI: " + uri + "\nSourcesentry: " + entry + "\n"
	if label != "" {
		s += "Origin: Debian\nLabel: " + label + "\n"
	}
	return s + "\n"
}

const (
	debian   = "http://mirror.test/debian/"
	security = "http://mirror.test/debian-security/"
)

// fakeApt puts testdata/bin first in PATH. Its archive has the pinned version in suite sid, and an older one in forky.
func fakeApt(t *testing.T) string {
	dir := t.TempDir()
	bin, err := filepath.Abs("testdata/bin")
	require.NoError(t, err)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("FAKE_APT", dir)
	t.Setenv(EnvLists, "")
	fresh := target(debian, "bookworm", "", "none:1") + target(debian, "bookworm-updates", "", "none:1") +
		target(security, "bookworm-security", "", "none:2")
	write(t, filepath.Join(dir, "targets-fresh"), []byte(fresh))
	write(t, filepath.Join(dir, "targets"),
		[]byte(target(debian, "bookworm", "Debian", "none:1")+
			target(security, "bookworm-security", "Debian-Security", "none:2")))
	suite(t, dir, "sid", "9.0-1")
	suite(t, dir, "forky", "8.0-1")
	require.NoError(t, os.Symlink(unpacked(t, packageFiles), filepath.Join(dir, "root")))
	return dir
}

func suite(t *testing.T, dir, name, version string) {
	write(t, filepath.Join(dir, "suites", name),
		[]byte("libibverbs-dev | "+version+" | "+debian+" "+name+"/main amd64 Packages\n"))
}

func fetchRelease(t *testing.T) (cache string, rel *Release, err error) {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	cache, rel = t.TempDir(), pinned(t)
	return cache, rel, FromArchive(ctx, rel, cache, t.Logf)
}

func calls(t *testing.T, dir string) string {
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	return string(log)
}

func TestFromArchive(t *testing.T) {
	dir := fakeApt(t)
	cache, rel, err := fetchRelease(t)
	require.NoError(t, err)
	assert.NoError(t, Verify(cache, rel))
	log := calls(t, dir)
	assert.Contains(t, log, "URIs: "+debian+"\nSuites: sid\nComponents: main\nTargets: Packages\n")
	assert.Contains(t, log, "download libibverbs-dev=9.0-1\n")
	assert.NotContains(t, log, "security/\nSuites")
	assert.NotContains(t, log, "Suites: forky", "sid had it")
}

func TestFromArchiveListsNeverUpdated(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "targets"), nil)
	cache, rel, err := fetchRelease(t)
	require.NoError(t, err)
	assert.NoError(t, Verify(cache, rel))
	assert.NotContains(t, calls(t, dir), "URIs: "+security)
}

// TestFromArchiveShared checks that programs that share lists query a suite and download a package once, and that each
// architecture has lists of its own.
func TestFromArchiveShared(t *testing.T) {
	dir := fakeApt(t)
	t.Setenv(EnvLists, filepath.Join(t.TempDir(), "lists"))
	for range 2 {
		cache, rel, err := fetchRelease(t)
		require.NoError(t, err)
		assert.NoError(t, Verify(cache, rel))
	}
	log := calls(t, dir)
	assert.Equal(t, 1, strings.Count(log, " update\n"), log)
	assert.Equal(t, 1, strings.Count(log, " download libibverbs-dev="), log)
	assert.Equal(t, 2, strings.Count(log, " indextargets"), log)
	for range 2 {
		p, err := OpenPackages(t.Context(), t.TempDir(), "arm64", "sid")
		require.NoError(t, err)
		require.NoError(t, p.Use(t.Context(), "sid"))
		require.NoError(t, p.Unpack(t.Context(), t.TempDir(), "libibverbs-dev"))
	}
	log = calls(t, dir)
	assert.Equal(t, 2, strings.Count(log, " update\n"), log)
	assert.Contains(t, log, "Architectures: arm64\n")
	suite(t, dir, "sid", "9.0-2")
	t.Setenv(EnvLists, "")
	p, err := OpenPackages(t.Context(), t.TempDir(), "arm64", "sid")
	require.NoError(t, err)
	require.NoError(t, p.Use(t.Context(), "sid"))
	version, err := p.Version(t.Context(), "libibverbs-dev")
	require.NoError(t, err)
	assert.Equal(t, "9.0-2", version, "lists that are not shared are new")
}

// TestFromArchiveLaterSuite checks that the second suite is used if the mirror lacks the first. It has a rebuild of the
// pinned source.
func TestFromArchiveLaterSuite(t *testing.T) {
	dir := fakeApt(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "suites/sid")))
	suite(t, dir, "forky", "9.0-1+b2")
	cache, rel, err := fetchRelease(t)
	require.NoError(t, err)
	assert.NoError(t, Verify(cache, rel))
	assert.Contains(t, calls(t, dir), "download libibverbs-dev=9.0-1+b2\n")
}

// TestFromArchiveUpdate checks that a later update of the kernel packages is accepted, but not a later release. The
// archive replaces each update by the next.
func TestFromArchiveUpdate(t *testing.T) {
	dir := fakeApt(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "root")))
	root := unpacked(t, map[string]string{"include/rdma/ib_user_verbs.h": "a"})
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "root")))
	rel := &Release{Project: "linux", Name: "7.2", Role: Primary, Suites: []string{"sid"},
		Packages: []*Package{{Name: "linux-libc-dev", Version: "7.2.13-1",
			Headers: []File{{Name: "rdma/ib_user_verbs.h", Sum: sum([]byte("a"))}}}}}
	for version, want := range map[string]string{
		"7.2.14-1": "", "7.20.1-1": "instead of", "7.3.1-1": "instead of",
	} {
		write(t, filepath.Join(dir, "suites/sid"),
			[]byte("linux-libc-dev | "+version+" | "+debian+" sid/main amd64 Packages\n"))
		cache := t.TempDir()
		err := FromArchive(context.Background(), rel, cache, t.Logf)
		if want == "" {
			require.NoError(t, err, version)
			assert.NoError(t, Verify(cache, rel))
			continue
		}
		assert.ErrorContains(t, err, want, version)
	}
	write(t, filepath.Join(root, "usr/include/rdma/ib_user_verbs.h"), []byte("b"))
	write(t, filepath.Join(dir, "suites/sid"),
		[]byte("linux-libc-dev | 7.2.15-1 | "+debian+" sid/main amd64 Packages\n"))
	var mismatch *MismatchError
	assert.ErrorAs(t, FromArchive(context.Background(), rel, t.TempDir(), t.Logf), &mismatch,
		"files with other checksums are rejected")
}

func TestFromArchiveGone(t *testing.T) {
	dir := fakeApt(t)
	suite(t, dir, "sid", "9.0-10")
	cache, _, err := fetchRelease(t)
	var gone *GoneError
	require.ErrorAs(t, err, &gone)
	assert.Equal(t, &GoneError{Release: "rdma-core 9.0", Package: "libibverbs-dev", Want: "9.0-1",
		Have: "9.0-10 in sid, 8.0-1 in forky"}, gone)
	assert.EqualError(t, err,
		"rdma-core 9.0: the archive has 9.0-10 in sid, 8.0-1 in forky instead of libibverbs-dev 9.0-1; "+
			"give the files with FROM=<include directory or source tree> of that release, or pin another "+
			"release")
	assert.Empty(t, below(t, cache))

	write(t, filepath.Join(dir, "suites/sid"), nil)
	require.NoError(t, os.Remove(filepath.Join(dir, "suites/forky")))
	_, _, err = fetchRelease(t)
	require.ErrorAs(t, err, &gone)
	assert.Equal(t, "none in sid, no suite forky", gone.Have)
}

func TestFromArchiveNoNetwork(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "suites/sid.fail"),
		[]byte("E: Failed to fetch InRelease  Could not resolve 'mirror.test'\n"))
	_, _, err := fetchRelease(t)
	var e *ArchiveError
	require.ErrorAs(t, err, &e)
	assert.EqualError(t, err, "rdma-core 9.0: querying the archive for suite sid: apt-get: exit status 100\n"+
		"\tE: Failed to fetch InRelease  Could not resolve 'mirror.test'\n"+
		"fix the network or the apt sources, or give the files with FROM=<include directory or source tree>")
	assert.NotContains(t, calls(t, dir), "Suites: forky", "an unreachable mirror is queried once")
	var gone *GoneError
	assert.False(t, errors.As(err, &gone))
}

func TestFromArchiveNetworkFailsLater(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "download.fail"), []byte("E: Failed to fetch pool/x.deb  Connection timed out\n"))
	cache, _, err := fetchRelease(t)
	var e *ArchiveError
	require.ErrorAs(t, err, &e)
	assert.ErrorContains(t, err, "downloading libibverbs-dev 9.0-1: apt-get: exit status 100\n\tE: Failed to fetch "+
		"pool/x.deb  Connection timed out")
	assert.Empty(t, below(t, cache))
}

// TestFromArchiveBomb checks that a package whose unpacked size exceeds the limit is rejected before it is unpacked.
func TestFromArchiveBomb(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "bomb"), nil)
	cache, _, err := fetchRelease(t)
	assert.ErrorContains(t, err, "unpacked size exceeds 1024 MiB")
	assert.NotContains(t, calls(t, dir), "dpkg -x")
	assert.Empty(t, below(t, cache))
}

func TestFromArchiveExitStatusOnly(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "silent"), nil)
	_, _, err := fetchRelease(t)
	var e *ArchiveError
	require.ErrorAs(t, err, &e)
	assert.ErrorContains(t, err, "querying the archive for suite sid: apt-get downloaded no package list")
}

// TestFromArchiveNoKey checks that a release is not reported as gone if a suite with a missing key may have it.
func TestFromArchiveNoKey(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "suites/sid.fail"), []byte("W: GPG error: NO_PUBKEY 0123\n"))
	_, _, err := fetchRelease(t)
	var e *ArchiveError
	require.ErrorAs(t, err, &e)
	assert.ErrorContains(t, err, "NO_PUBKEY 0123")
	assert.Contains(t, calls(t, dir), "Suites: forky")

	suite(t, dir, "forky", "9.0-1")
	_, _, err = fetchRelease(t)
	assert.NoError(t, err)
}

func TestFromArchiveNoApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, _, err := fetchRelease(t)
	assert.ErrorIs(t, err, ErrNoApt)
	assert.EqualError(t, err, "rdma-core 9.0: no apt on this machine: no command apt-get; give the files with "+
		"FROM=<include directory or source tree>")
}

func TestFromArchiveNoDebian(t *testing.T) {
	dir := fakeApt(t)
	other := target("http://vendor.test/apt/", "nodistro", "", "none:1")
	write(t, filepath.Join(dir, "targets-fresh"), []byte(other))
	write(t, filepath.Join(dir, "targets"), nil)
	_, _, err := fetchRelease(t)
	assert.ErrorIs(t, err, ErrNoArchive)

	// Debian's suites and address, but another label
	write(t, filepath.Join(dir, "targets-fresh"), []byte(target(debian, "bookworm", "", "none:1")))
	write(t, filepath.Join(dir, "targets"), []byte(target(debian, "bookworm", "Vendor", "none:1")))
	_, _, err = fetchRelease(t)
	assert.ErrorIs(t, err, ErrNoArchive)
}

func TestFromArchiveMismatch(t *testing.T) {
	dir := fakeApt(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "root")))
	require.NoError(t, os.Symlink(unpacked(t, but(map[string]string{"include/infiniband/verbs.h": "int evil;\n"})),
		filepath.Join(dir, "root")))
	cache, _, err := fetchRelease(t)
	var m *MismatchError
	require.ErrorAs(t, err, &m)
	assert.Equal(t, "infiniband/verbs.h", m.Diffs[0].File)
	assert.Empty(t, below(t, cache))
}

func TestFromArchiveLacksPage(t *testing.T) {
	dir := fakeApt(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "root")))
	require.NoError(t, os.Symlink(unpacked(t, but(map[string]string{"share/man/man3/ibv_post_send.3": ""})),
		filepath.Join(dir, "root")))
	_, _, err := fetchRelease(t)
	assert.EqualError(t, err, "rdma-core 9.0: the archive's packages lack pinned man pages or libraries: "+
		"ibv_post_send.3")
}

func TestFromArchiveBounded(t *testing.T) {
	dir := fakeApt(t)
	write(t, filepath.Join(dir, "hang"), nil)
	ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	start := time.Now()
	err := FromArchive(ctx, pinned(t), t.TempDir(), nil)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Less(t, time.Since(start), 10*time.Second)
}

// TestFromArchiveCleansUp checks that no files are left in the temporary directory.
func TestFromArchiveCleansUp(t *testing.T) {
	fakeApt(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	require.NoError(t, FromArchive(context.Background(), pinned(t), filepath.Join(t.TempDir(), "cache"), nil))
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestFromArchiveReal(t *testing.T) {
	if os.Getenv("GOVERBS_NETWORK_TESTS") != "1" {
		t.Skip("queries the real archive; set GOVERBS_NETWORK_TESTS=1 to run it")
	}
	_, err := exec.LookPath("apt-get")
	require.NoError(t, err, "GOVERBS_NETWORK_TESTS=1 requires a Debian machine")
	data, err := os.ReadFile("../../headers/headers.lock")
	require.NoError(t, err)
	l, err := ParseLock("headers.lock", data)
	require.NoError(t, err)
	rel, err := l.Release(rdmaCore, "44.0")
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	cache := t.TempDir()
	require.NoError(t, FromArchive(ctx, rel, cache, t.Logf))
	assert.NoError(t, Verify(cache, rel))
	assert.Equal(t, "44.0", nameOf(l.Detect(rdmaCore, filepath.Join(cache, "44.0"))))
}
