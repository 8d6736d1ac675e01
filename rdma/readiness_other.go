//go:build !unix

package rdma

// duplicate is for systems whose descriptors Go's netpoller does not take.
func duplicate(int) (int, error) { return -1, eopnotsupp }
