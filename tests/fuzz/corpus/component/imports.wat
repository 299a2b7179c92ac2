(component
  (import "agent-host:runner/log@1.0.0" (instance $log
    (type $level (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $l (eq $level)))
    (export "write" (func (param "level" $l) (param "message" string)))))
  (import "wasi:sockets/tcp@0.2.0" (instance))
  (core module $m (memory (export "memory") 1) (func (export "f") (loop (br 0))))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $runner (export "run" (func $f)))
  (export "agent-host:runner/runner@1.0.0" (instance $runner))
)
