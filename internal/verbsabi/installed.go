// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// ErrNoHeaders is the error for missing headers of a project.
var ErrNoHeaders = errors.New("no headers")

// FindHeaders finds the include directory in which a C compiler finds the headers of a project.
func FindHeaders(ctx context.Context, cc Compiler, of *project.Project) (string, error) {
	dirs, err := cc.defaultInclude(ctx)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if hasHeaders(dir, of) == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w of %s: %s is in none of the directories that %s searches (%s); install %s, or name the "+
		"include directory with -I", ErrNoHeaders, of.Name, of.Mark, cc, strings.Join(dirs, ", "), development(of.Mark))
}

// hasHeaders returns an error if a directory does not have the headers of a project.
func hasHeaders(includeDir string, of *project.Project) error {
	if _, err := os.Stat(filepath.Join(includeDir, of.Mark)); err != nil {
		return fmt.Errorf("%w of %s in %s: %w; name the directory that holds %s with -I", ErrNoHeaders, of.Name,
			includeDir, err, of.Mark)
	}
	return nil
}

// ReadHeaders parses installed headers for one target, for packages of one project. It does not use a C compiler.
func ReadHeaders(includeDir, target string, packages []rules.Package) (*model.Release, error) {
	return parse.Read(parse.Source{
		Release: "installed", Include: bounded.Dir(includeDir), Name: includeDir, Headers: headersOf(packages),
		Targets: []string{target},
	})
}

// StatedRelease returns the release in the pkg-config files next to an include directory. It returns "" if there are no
// such files or they disagree.
func StatedRelease(includeDir string, of *project.Project) string {
	prefix := filepath.Dir(filepath.Clean(includeDir))
	stated := ""
	for _, pattern := range []string{"lib/pkgconfig", "lib64/pkgconfig", "lib/*/pkgconfig", "share/pkgconfig"} {
		files, _ := filepath.Glob(filepath.Join(prefix, pattern, of.PkgConfig+".pc")) // the pattern is valid
		for _, name := range files {
			text, err := bounded.Read(name)
			if err != nil {
				continue
			}
			m := of.Version.FindSubmatch(text)
			if m == nil || (stated != "" && stated != string(m[1])) {
				return ""
			}
			stated = string(m[1])
		}
	}
	return stated
}
