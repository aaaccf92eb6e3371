-- CreateIndex
CREATE INDEX "repositories_open" ON "repositories"("name_key" text_pattern_ops) WHERE (visibility <> 'private');
