/** A worker's side of `Worker` (support/stage.ts): jobs come one after the other, each is answered. */
export function serveJobs<Job, Answer>(work: (job: Job) => Promise<Answer>): void {
  process.on("message", (job) => {
    work(job as Job).then(
      (result) => process.send!({ result }),
      (error) => process.send!({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) }),
    );
  });
}
