// work uses as much CPU and memory as it is asked to.
//
// The flags say how much at the start, and GET /?mib=N&milli=M changes it while it runs. With -after it ends by
// itself, with exit code 0, as the container of a Job does.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	mebibyte = 1 << 20
	page     = 4096
	// Short beside the 100 ms of a CPU limit, so that one above the asked use hardly throttles.
	period = 20 * time.Millisecond
	// As much is caught up with; a limit below the asked use would pile up any amount.
	backlog      = time.Second
	rusageThread = 1
)

var mib, milli atomic.Int64

// hold keeps mib MiB of memory in use; what is given back goes to the kernel at once.
func hold() {
	var held [][]byte
	for {
		want := int(mib.Load())
		for len(held) < want {
			block, err := syscall.Mmap(-1, 0, mebibyte, syscall.PROT_READ|syscall.PROT_WRITE,
				syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				log.Print("mmap: ", err)
				break
			}
			for at := 0; at < len(block); at += page {
				block[at] = 1
			}
			held = append(held, block)
			if len(held)%64 == 0 {
				log.Print("holding MiB: ", len(held))
				time.Sleep(20 * time.Millisecond)
			}
		}
		for len(held) > want {
			last := len(held) - 1
			if err := syscall.Munmap(held[last]); err != nil {
				log.Fatal("munmap: ", err)
			}
			held = held[:last]
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// cpuTime is what this thread has had of the CPU so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &usage); err != nil {
		log.Fatal("getrusage: ", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// burn uses the asked millicores, measured in CPU time: what a busy machine didn't give is caught up with.
func burn() {
	runtime.LockOSThread()
	owed := time.Duration(0)
	for last := time.Now(); ; time.Sleep(period) {
		now := time.Now()
		owed = min(owed+now.Sub(last)*time.Duration(milli.Load())/1000, backlog)
		last = now
		before := cpuTime()
		for cpuTime()-before < owed && time.Since(now) < 10*period {
			for range 10_000 {
			}
		}
		owed -= cpuTime() - before
	}
}

func set(name string, value *atomic.Int64, request *http.Request) {
	if text := request.URL.Query().Get(name); text != "" {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			log.Print(err)
			return
		}
		value.Store(number)
	}
}

func main() {
	address := flag.String("addr", ":8080", "where to listen")
	memory := flag.Int64("mib", 0, "MiB to hold")
	cpu := flag.Int64("milli", 0, "millicores to burn")
	after := flag.Duration("after", 0, "end after so long")
	flag.Parse()
	mib.Store(*memory)
	milli.Store(*cpu)
	go hold()
	go burn()
	if *after > 0 {
		time.AfterFunc(*after, func() { os.Exit(0) })
	}
	go func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		<-signals
		os.Exit(0)
	}()
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		set("mib", &mib, request)
		set("milli", &milli, request)
		name, _ := os.Hostname()
		fmt.Fprintf(answer, "%s mib=%d milli=%d\n", name, mib.Load(), milli.Load())
	})
	log.Fatal(http.ListenAndServe(*address, nil))
}
