//go:build race

package rdma

const underRaceDetector = true
