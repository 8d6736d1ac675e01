// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// debianSuites are the Debian releases of the matrix with their releases of rdma-core. The last one moves.
var debianSuites = []struct{ suite, release string }{
	{"bullseye", "33.2"}, {"bookworm", "44.0"}, {"trixie", "56.1"}, {"testing", "65.0"}}

// debian is an unpacked Debian release: its libraries as the layer of an image, and its root with the headers.
type debian struct {
	suite, release, root string
	layer                []byte
}

// debians returns the systems of the matrix, from the cache or the Debian archive: 10 MB each.
func debians(t *testing.T) (all []debian) {
	t.Helper()
	cache, err := filepath.Abs("../../conformance/abi/cache")
	require.NoError(t, err)
	for _, s := range debianSuites {
		d := debian{suite: s.suite, release: s.release, root: filepath.Join(cache, s.suite)}
		if _, err := os.Stat(d.root); err != nil {
			require.NoError(t, os.MkdirAll(cache, 0o755))
			work, err := os.MkdirTemp(cache, "making-")
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(work) })
			archive, err := fetch.OpenPackages(t.Context(), filepath.Join(work, "apt"), "amd64", s.suite)
			if err != nil {
				t.Skipf("needs the Debian archive: %v", err)
			}
			unpackDebian(t, archive, s.suite, filepath.Join(work, "root"))
			require.NoError(t, os.Rename(filepath.Join(work, "root"), d.root))
		}
		d.layer, err = exec.Command("tar", "-c", "-C", d.root, "--exclude=./usr/include", ".").Output()
		require.NoError(t, err)
		all = append(all, d)
	}
	return all
}

// unpackDebian unpacks the packages of a program with RDMA, and of rdma-core's headers.
func unpackDebian(t *testing.T, archive *fetch.Packages, suite, root string) {
	t.Helper()
	require.NoError(t, archive.Use(t.Context(), suite))
	for _, name := range []string{"libc6", "libibverbs1", "librdmacm1", "ibverbs-providers", "libnl-3-200",
		"libnl-route-3-200", "libibverbs-dev", "librdmacm-dev"} {
		version, err := archive.Version(t.Context(), name)
		require.NoError(t, err)
		if version == "" {
			name += "t64" // since time_t has 64 bits
		}
		require.NoError(t, archive.Unpack(t.Context(), root, name))
	}
	for link, to := range map[string]string{"lib": "usr/lib", "lib64": "usr/lib64"} { // of base-files
		if _, err := os.Lstat(filepath.Join(root, link)); os.IsNotExist(err) {
			require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
		}
	}
	for _, dir := range []string{"usr/share", libDir + "/gconv", "lib/x86_64-linux-gnu/gconv"} {
		require.NoError(t, os.RemoveAll(filepath.Join(root, dir)))
	}
}

// file returns the path in the root and the content of a library.
func (d debian) file(t *testing.T, name string) (string, []byte) {
	t.Helper()
	for _, dir := range []string{libDir, "lib/x86_64-linux-gnu"} {
		if path, err := filepath.EvalSymlinks(filepath.Join(d.root, dir, name)); err == nil {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			rel, err := filepath.Rel(d.root, path)
			require.NoError(t, err)
			return rel, content
		}
	}
	require.Fail(t, "no library", "%s in %s", name, d.root)
	return "", nil
}

// imageDrifts are changes of a library in an image, with the finding that each must give.
var imageDrifts = []struct {
	name, library string
	change        func(content []byte) []byte // nil removes the file
	want          func(lib string) string
}{
	{"removed", "", nil, func(lib string) string { return "library " + lib }},
	{"dependency removed", "libnl-3.so.200", nil, func(string) string { return "library libnl-3.so.200" }},
	{"loader removed", "ld-linux-x86-64.so.2", nil, func(string) string { return "library ld-linux-x86-64.so.2" }},
	{"C library removed", "libc.so.6", nil, func(string) string { return "library libc.so.6" }},
	{"other architecture", "", func(b []byte) []byte {
		binary.LittleEndian.PutUint16(b[18:], 183)
		return b
	}, func(lib string) string { return "library " + lib }},
	{"truncated", "", func(b []byte) []byte { return b[:len(b)/2] }, func(lib string) string { return "library " + lib }},
	{"text", "", func([]byte) []byte { return []byte("GROUP ( x.so )\n") },
		func(lib string) string { return "library " + lib }},
	{"function renamed", "", func(b []byte) []byte {
		b = bytes.ReplaceAll(b, []byte("\x00ibv_create_qp\x00"), []byte("\x00ibv_create_qq\x00"))
		return bytes.ReplaceAll(b, []byte("\x00rdma_connect\x00"), []byte("\x00rdma_connecs\x00"))
	}, func(lib string) string {
		return "symbol " + lib + " " + map[string]string{"libibverbs.so.1": "ibv_create_qp",
			"librdmacm.so.1": "rdma_connect"}[lib]
	}},
	{"newer C library", "", func(b []byte) []byte {
		return regexp.MustCompile(`\x00GLIBC_2\.`).ReplaceAll(b, []byte("\x00GLIBC_9."))
	}, func(lib string) string { return "version " + lib + " GLIBC_9." }},
}

// headerDrifts are changes of a header, with the finding that each must give.
var headerDrifts = []struct{ file, old, new, want string }{
	{"infiniband/verbs.h", `(struct ibv_sge \{\s+uint64_t\s+addr;\s+)uint32_t(\s+length;)`, "${1}uint64_t${2}", "ibv_sge"},
	{"infiniband/verbs.h", `(uint32_t\s+vendor_err;)(\s+)(uint32_t\s+byte_len;)`, "$3$2$1", "ibv_wc."},
	{"infiniband/verbs.h", `(struct ibv_ah_attr \{[^}]*?)\s+uint8_t\s+is_global;`, "$1", "ibv_ah_attr."},
	{"infiniband/verbs.h", `(struct ibv_global_route \{\s+union ibv_gid\s+dgid;)`, "$1\n\tuint32_t more;", "ibv_global_route."},
	{"infiniband/verbs.h", `(\tIBV_QPS_RTR),`, "$1 = 9,", "IBV_QPS_RTR"},
	{"infiniband/verbs.h", `(IBV_ACCESS_REMOTE_READ\s*=\s*)\(?1 ?<< ?2\)?`, "${1}64", "IBV_ACCESS_REMOTE_READ"},
	{"infiniband/verbs.h", `(IBV_SEND_INLINE\s*=\s*)1 << 3`, "${1}1 << 7", "IBV_SEND_INLINE"},
	{"infiniband/verbs.h", `int ibv_destroy_qp\(struct ibv_qp \*qp\);`, "int ibv_destroy_qp(struct ibv_qp *qp, int more);",
		"ibv_destroy_qp"},
	{"rdma/rdma_cma.h", `(struct rdma_cm_id \{[^}]*?)(struct ibv_qp\s+\*qp;)`, "${1}void *more; $2", "rdma_cm_id."},
	{"rdma/rdma_cma.h", `(RDMA_PS_TCP\s*=\s*)0x0106`, "${1}0x0107", "RDMA_PS_TCP"},
	{"rdma/rdma_cma.h", `(struct rdma_conn_param \{[^}]*?)uint8_t(\s+retry_count;)`, "${1}uint16_t$2", "rdma_conn_param."},
	{"infiniband/mlx5dv.h", `(struct mlx5dv_qp \{\s+)__be32(\s+\*dbrec;)`, "${1}uint64_t more; __be32$2", "mlx5dv_qp."},
}

// kernelDrifts are changes of types in the type information of a kernel: of a member's offset, or without a member of the
// type's size, or of an enumerator.
var kernelDrifts = []struct {
	kind         uint32
	name, member string
	want         string
}{
	{btfStruct, "ib_uverbs_create_cq", "comp_vector", "field ib_uverbs_create_cq.comp_vector offset"},
	{btfStruct, "ib_uverbs_query_device_resp", "max_mr_size", "field ib_uverbs_query_device_resp.max_mr_size offset"},
	{btfStruct, "rdma_ucm_connect", "", "record rdma_ucm_connect size"},
	{btfStruct, "rxe_send_wr", "opcode", "field rxe_send_wr.opcode offset"},
	{btfEnum, "uverbs_default_objects", "UVERBS_OBJECT_CQ", "enumerator UVERBS_OBJECT_CQ value"},
}

// changeBTF writes copies of a kernel and its modules in which a type has been changed.
func changeBTF(t *testing.T, files []string, kind uint32, name, member string) []string {
	t.Helper()
	var kernel *btfFile
	var out []string
	changed := 0
	for _, path := range files {
		f, err := readBTF(path, kernel, "amd64")
		require.NoError(t, err)
		if kernel == nil {
			kernel = f
		}
		types := bytes.Clone(f.types)
		for _, start := range f.starts {
			k, n, _ := f.info(uint64(start))
			if found, err := f.name(f.order.Uint32(f.types[start:])); k != kind || err != nil || found != name {
				continue
			}
			size, at := uint32(12), start+8 // the type's size
			if kind == btfEnum {
				size = 8
			}
			for i := range uint32(n) {
				if found, err := f.name(f.order.Uint32(f.types[start+12+i*size:])); err == nil && found == member {
					at = start + 12 + i*size + size - 4
				}
			}
			f.order.PutUint32(types[at:], f.order.Uint32(types[at:])+64)
			changed++
		}
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		out = append(out, filepath.Join(t.TempDir(), filepath.Base(path)))
		require.NoError(t, os.WriteFile(out[len(out)-1], bytes.Replace(file, f.types, types, 1), 0o644))
	}
	require.NotZero(t, changed, name)
	return out
}

// TestMatrix checks two programs and all packages against images and headers of four Debian releases, models of four
// releases of rdma-core against each of them, and generated/uapi against three kernels. Nothing is incompatible as
// Debian has it, and each seeded change is reported by name.
func TestMatrix(t *testing.T) {
	onlyWithC(t)
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("takes minutes, and downloads 40 MB; set GOVERBS_EVERYTHING=1")
	}
	systems := debians(t)
	t.Run("programs", func(t *testing.T) { matrixOfPrograms(t, systems) })
	t.Run("headers", func(t *testing.T) { matrixOfHeaders(t, systems) })
	t.Run("releases", func(t *testing.T) { matrixOfReleases(t, systems) })
	t.Run("kernels", matrixOfKernels)
}

func matrixOfPrograms(t *testing.T, systems []debian) {
	programs := map[string]string{"libibverbs.so.1": buildProgram(t, "amd64", "-ldflags=-s -w"),
		"librdmacm.so.1": buildExample(t, "http", "amd64")}
	image := filepath.Join(t.TempDir(), "image.tar")
	clean, seeded := 0, 0
	var took []time.Duration
	check := func(program string) (bool, *Answer) {
		began := time.Now()
		ok, a := checkProgram(t, program, image)
		took = append(took, time.Since(began))
		return ok, a
	}
	for _, d := range systems {
		for lib, program := range programs {
			require.NoError(t, os.WriteFile(image, savedImage(t, d.layer), 0o644))
			ok, a := check(program)
			clean++
			assert.True(t, ok, "%s, %s: %v", d.suite, lib, failures(a))
			require.NotEmpty(t, a.Libraries)
			assert.Equal(t, d.release, a.Libraries[0].Release, d.suite)
			for _, drift := range imageDrifts {
				library := drift.library
				if library == "" {
					library = lib
				}
				path, content := d.file(t, library)
				layer := layerOf(t, filepath.Dir(path)+"/.wh."+filepath.Base(path))
				if drift.change != nil {
					layer = layerOf(t, path+"="+string(drift.change(content)))
				}
				require.NoError(t, os.WriteFile(image, savedImage(t, d.layer, layer), 0o644))
				ok, a := check(program)
				seeded++
				assert.False(t, ok, "%s, %s: %s", d.suite, lib, drift.name)
				assert.True(t, slices.ContainsFunc(failures(a), func(id string) bool {
					return strings.HasPrefix(id, drift.want(lib))
				}), "%s, %s: %s: %v", d.suite, lib, drift.name, failures(a))
			}
		}
	}
	slices.Sort(took)
	t.Logf("%d images accepted, %d seeded changes of images found; a check took %v (median), at most %v", clean, seeded,
		took[len(took)/2], took[len(took)-1])
}

// askHeaders compares the Go packages with the headers in a directory.
func askHeaders(t *testing.T, include string) *Answer {
	t.Helper()
	return askMatrix(t, func(q *Question) { q.Include, q.Only = include, Headers })
}

// askMatrix asks a question about all packages of rdma-core on this machine.
func askMatrix(t *testing.T, change func(*Question)) *Answer {
	t.Helper()
	packages, err := Packages("ibv", "rdmacm", "mlx5dv", "mlx4dv", "efadv")
	require.NoError(t, err)
	primary, all, err := recordedReleases()
	require.NoError(t, err)
	q := Question{Packages: packages, CC: hostCompiler(t), Target: "amd64", Primary: primary, Recorded: all}
	change(&q)
	a, err := Ask(context.Background(), q)
	require.NoError(t, err)
	a.Findings = a.findings()
	a.judge()
	return a
}

func matrixOfHeaders(t *testing.T, systems []debian) {
	clean, seeded := 0, 0
	for _, d := range systems {
		include := filepath.Join(d.root, "usr/include")
		a := askHeaders(t, include)
		clean++
		assert.Empty(t, failures(a), d.suite)
		assert.Equal(t, d.release, a.Headers[0].Release)
		for _, drift := range headerDrifts {
			changed := t.TempDir()
			require.NoError(t, os.CopyFS(changed, os.DirFS(include)))
			file := filepath.Join(changed, drift.file)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			after := regexp.MustCompile(drift.old).ReplaceAll(text, []byte(drift.new))
			require.NotEqual(t, string(text), string(after), "%s: %s", d.suite, drift.old)
			require.NoError(t, os.WriteFile(file, after, 0o644))
			a := askHeaders(t, changed)
			seeded++
			assert.True(t, slices.ContainsFunc(failures(a), func(id string) bool { return strings.Contains(id, drift.want) }),
				"%s: %s: %v", d.suite, drift.want, failures(a))
		}
	}
	t.Logf("%d sets of headers accepted, %d seeded changes of headers found", clean, seeded)
}

// matrixOfReleases compares the model of each release with the headers and libraries of each system: programs of an
// older or a newer release of the Go packages would run there.
func matrixOfReleases(t *testing.T, systems []debian) {
	cells := 0
	for _, d := range systems {
		for _, of := range systems {
			a := askMatrix(t, func(q *Question) {
				q.Include = filepath.Join(d.root, "usr/include")
				q.LibraryDirs = []string{filepath.Join(d.root, libDir)}
				q.Primary = rules.Recorded(slices.Clone(q.Primary))
				i := slices.IndexFunc(q.Primary, func(r *model.Release) bool { return r.Project == project.All[0].Name })
				q.Primary[i] = recordedModel(t, of.release)
			})
			cells++
			assert.Empty(t, failures(a), "release %s on %s", of.release, d.suite)
			require.NotEmpty(t, a.Libraries)
			if of.release == d.release {
				assert.Equal(t, Identical, a.Headers[0].Verdict, d.suite)
			}
		}
	}
	t.Logf("%d pairs of a release and a system accepted", cells)
}

func matrixOfKernels(t *testing.T) {
	clean, seeded := 0, 0
	for _, pattern := range []string{"6.1-*", "6.12-*", "7-*"} {
		dirs, _ := filepath.Glob("../../conformance/vm/cache/" + pattern)
		if len(dirs) != 1 {
			t.Skip("no kernel; run make vm")
		}
		files := []string{filepath.Join(t.TempDir(), "vmlinux")}
		require.NoError(t, os.WriteFile(files[0], decompressKernel(t, filepath.Join(dirs[0], "vmlinuz")), 0o644))
		for _, name := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe"} {
			files = append(files, filepath.Join(dirs[0], "modules", name+".ko"))
		}
		ask := func(files []string) []string {
			a, err := askBTF(t, files...)
			require.NoError(t, err)
			a.Findings = a.findings()
			a.judge()
			return failures(a)
		}
		assert.Empty(t, ask(files), pattern)
		clean++
		for _, drift := range kernelDrifts {
			after := ask(changeBTF(t, files, drift.kind, drift.name, drift.member))
			seeded++
			assert.Contains(t, after, drift.want, pattern)
		}
	}
	t.Logf("%d kernels accepted, %d seeded changes found", clean, seeded)
}
